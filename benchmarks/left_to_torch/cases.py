"""The parts of a layer that have no kernel of ours, as the model has them, and what they have to move at least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glm_kernels.dropout import Site
from megatron_glm.model.layer import Layer, add_residual

HEAD_DIM = 64
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Case:
    """A part of a layer.

    Attributes:
        build: the module, of a hidden size.
        width: of its input, in hidden sizes.
        least: numbers that forward and that backward read and write at least, of tokens and hidden size: each tensor
            that goes in or comes out once, whatever happens in between. Matrix products count for nothing.
    """

    build: Callable[[int], nn.Module]
    width: int
    least: Callable[[int, int], tuple[int, int]]


class BiasGELU(nn.Module):
    """What stands between the two matrix products of `megatron_glm.model.mlp.MLP`: [T, 4H] -> [T, 4H]."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x + self.bias, approximate="tanh")


class SecondHalf(nn.Module):
    """A layer after its attention, without dropout, whose sum with the residual is a kernel of ours."""

    def __init__(self, layer: Layer):
        super().__init__()
        self.norm, self.mlp = layer.post_attention_layernorm, layer.mlp

    def forward(self, hidden: Tensor) -> Tensor:
        return add_residual(self.mlp(self.norm(hidden)), hidden, Site.MLP_OUTPUT)


def _layer(hidden_size: int) -> Layer:
    return Layer(hidden_size, hidden_size // HEAD_DIM)


def _norm(T: int, H: int) -> tuple[int, int]:
    # The input with weight and bias, the output; then two rows in and one out, the weight in, two gradients out.
    return 2 * T * H + 2 * H, 3 * T * H + 3 * H


def _bias_gelu(T: int, H: int) -> tuple[int, int]:
    return 4 * (2 * T * H + H), 4 * (3 * T * H + 2 * H)


def _second_half(T: int, H: int) -> tuple[int, int]:
    norm, gelu, residual = _norm(T, H), (8 * T * H, 12 * T * H), (3 * T * H, T * H)
    biases = T * H + 5 * H  # that of the second product is the sum of what came; of the first, of what GELU computes
    return norm[0] + gelu[0] + residual[0], norm[1] + gelu[1] + residual[1] + biases


CASES = {
    "layer norm": Case(lambda H: _layer(H).post_attention_layernorm, 1, _norm),
    "bias + GELU": Case(BiasGELU, 4, _bias_gelu),
    "norm, MLP and residual": Case(lambda H: SecondHalf(_layer(H)), 1, _second_half),
}


def built(case: Case, hidden_size: int, kind: str, device: str) -> nn.Module:
    """The module in a type of number on a device; its parameters are random where they are zero at first."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(TYPES[kind])
    try:
        with torch.device(device):
            module = case.build(hidden_size)
    finally:
        torch.set_default_dtype(default)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module

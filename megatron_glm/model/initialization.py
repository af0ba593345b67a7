"""Initial values that depend on the seed and a parameter's name, and on nothing else.

Each parameter has its own generator on the CPU: the order of construction, the device and the
parallel layout have no say, and a shard is a slice of the same numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from megatron_glm.config.schema import Model

_OUTPUT_PROJECTIONS = ("attention.dense.weight", "mlp.dense_4h_to_h.weight")

Take = Callable[[str, Tensor], Tensor]  # name, whole parameter -> this process's part of it


@torch.no_grad()
def initialize(
    model: nn.Module, shapes: Mapping[str, tuple[int, ...]], config: Model, seed: int, take: Take | None = None
) -> None:
    """Set every parameter of the model, in place.

    Args:
        shapes: of the whole parameters, by name.
        take: what this process has of a whole parameter; default: all.
    """
    for name, parameter in model.named_parameters():
        whole = initial_value(name, shapes[name], config, seed)
        parameter.copy_(take(name, whole) if take else whole)


def initial_value(name: str, shape: tuple[int, ...], config: Model, seed: int) -> Tensor:
    """What a parameter starts from, fp32 on the CPU: norms 1, biases 0, the rest normal.

    The projections that write to the residual stream are scaled by 1/√(2 · num_layers), so that
    its variance does not grow with the depth.

    Source: the original release, as GPT-2.
    """
    if name.endswith(".bias"):
        return torch.zeros(shape)
    if "layernorm" in name:
        return torch.ones(shape)
    std = config.initializer_range
    if name.endswith(_OUTPUT_PROJECTIONS):
        std /= math.sqrt(2 * config.num_layers)
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    # torch's CPU generator takes 32 bits of seed.
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
    return torch.empty(shape).normal_(0.0, std, generator=generator)

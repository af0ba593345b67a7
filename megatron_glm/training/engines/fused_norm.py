"""The norms of a model computed by a kernel of NVIDIA's apex."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import torch.nn.functional as F
from torch import Tensor, nn

from megatron_glm.config.schema import Train
from megatron_glm.parallel.linear import SpreadLayerNorm
from megatron_glm.training.engines.apex import apex_normalizes

Kernel = Callable[[Tensor, Tensor, Tensor, tuple[int, ...], float], Tensor]  # x, weight, bias, shape, eps


class FusedLayerNorm(nn.LayerNorm):
    """A norm, with its parameters, that computes by another kernel: [T, H] -> [T, H]."""

    def __init__(self, norm: nn.LayerNorm, kernel: Kernel):
        super().__init__(norm.normalized_shape, eps=norm.eps, device="meta")
        self.weight, self.bias = norm.weight, norm.bias
        self._kernel = kernel
        # Spread tokens: the gradients of both are summed over the ranks, whoever computes them.
        self._shared = norm.shared if isinstance(norm, SpreadLayerNorm) else _alone

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._shared(self.weight, self.bias)
        if not len(x):  # a micro-batch without targets; apex would start a grid of no blocks, which CUDA refuses
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)
        return self._kernel(x, weight, bias, self.normalized_shape, self.eps)


def fuse_norms(model: nn.Module, settings: Train) -> None:
    """Let apex compute the norms of a model, in place, if the settings say so.

    Raises:
        ConfigError: NVIDIA's apex is asked for and not there, or `apex` is the PyPI package of that name.
    """
    if not apex_normalizes(settings):
        return
    kernel = import_module("apex.normalization.fused_layer_norm").fused_layer_norm_affine
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.LayerNorm):
                setattr(parent, name, FusedLayerNorm(child, kernel))


def _alone(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return weight, bias

"""A factor that only the backward pass sees.

Spikes of the loss begin with gradients of the word table that reach it from the input: shrinking those steadies a
run. The sum α · x + (1 − α) · detach(x) would do the same, but rounds x, and keeps two more tensors of its size.

Source: GLM-130B (arXiv 2210.02414, section 2.3), embedding gradient shrink.
"""

from __future__ import annotations

import torch
from torch import Tensor


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """x itself, whose gradient comes back multiplied by `factor`; any shape."""
    return x if factor == 1.0 else _ScaleGradient.apply(x, factor)


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None

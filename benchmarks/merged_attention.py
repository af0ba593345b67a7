"""Attention of part B in two unmasked calls, over part A and over itself, merged by their log-sum-exps.

The causal corner is then a call of its own, and no mask is read. torch has no such function with
gradients: this one rests on the operators that its fused CPU kernel is made of. A peer of the
benchmark and nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class MergedPartB(torch.autograd.Function):
    """apply(query, key_a, value_a, key_b, value_b) -> what part B attends to; [1, heads, b or a, d] each."""

    @staticmethod
    def forward(ctx, query: Tensor, key_a: Tensor, value_a: Tensor, key_b: Tensor, value_b: Tensor) -> Tensor:
        over_a, lse_a = _forward(query, key_a, value_a, 0.0, False)
        over_b, lse_b = _forward(query, key_b, value_b, 0.0, True)
        lse = torch.logaddexp(lse_a, lse_b)
        shares = ((part - lse).exp()[..., None].to(query.dtype) for part in (lse_a, lse_b))
        output = sum(share * part for share, part in zip(shares, (over_a, over_b), strict=True))
        ctx.save_for_backward(query, key_a, value_a, key_b, value_b, output, lse)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        query, key_a, value_a, key_b, value_b, output, lse = ctx.saved_tensors
        # With the output and the log-sum-exp of the whole, each part gives its share of the exact gradients.
        of_a = _backward(grad, query, key_a, value_a, output, lse, 0.0, False)
        of_b = _backward(grad, query, key_b, value_b, output, lse, 0.0, True)
        return of_a[0] + of_b[0], *of_a[1:], *of_b[1:]

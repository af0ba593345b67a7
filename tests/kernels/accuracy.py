"""How exact a kernel has to be: fp32 to 2e-6, the 16-bit types as the same formula in torch, within a factor of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

FP32 = 2e-6  # of the largest value
COMPILERS = pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def values_and_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor) -> list[Tensor]:
    """The result of a function of tensors, and its gradients; both from fresh leaves."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    result = function(*leaves)
    return [result.detach(), *torch.autograd.grad(result, leaves, upstream.to(result.dtype))]


def assert_accurate(
    kernel: Callable[..., Tensor], formula: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor
) -> None:
    """The kernel's result and gradients lie near those of the formula in fp64.

    Args:
        formula: in plain torch, for any type.
        inputs, upstream: of one type, the kernel's.
    """
    got = values_and_gradients(kernel, inputs, upstream)
    exact = values_and_gradients(formula, [x.double() for x in inputs], upstream.double())
    plain = values_and_gradients(formula, inputs, upstream)
    for number, (a, b, c) in enumerate(zip(got, exact, plain, strict=True)):
        assert a.shape == b.shape
        if not a.numel():
            continue
        error, largest = (a.double() - b).abs().max(), b.abs().max().clamp(min=1.0)
        allowed = FP32 * largest
        if inputs[0].dtype != torch.float32:
            allowed = 2 * (c.double() - b).abs().max() + allowed
        assert error <= allowed, f"result {number}: error {error:.2e}, allowed {allowed:.2e}"

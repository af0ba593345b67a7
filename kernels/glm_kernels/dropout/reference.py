"""Residual plus dropout as the formula says it."""

from __future__ import annotations

from torch import Tensor


def dropout_add_reference(x: Tensor, residual: Tensor | None, *, probability: float, dropped: Tensor) -> Tensor:
    """residual + x · kept / (1 − probability); [T, H], dropped: bool [T, H]."""
    kept = x * (~dropped).to(x.dtype) / (1.0 - probability)
    return kept if residual is None else residual + kept

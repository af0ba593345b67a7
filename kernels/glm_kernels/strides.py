"""The memory layouts that kernels read."""

from __future__ import annotations

from torch import Tensor

_LARGEST_STRIDE = 2**31 // 1024  # the rows of a tile, at most 1024, are counted in 32 bits from its first one


def with_near_rows(x: Tensor) -> Tensor:
    """x itself or a copy: features side by side, and rows so near to each other that 32 bits count over a tile."""
    return with_dense_features(x if x.stride(0) < _LARGEST_STRIDE else x.contiguous())


def with_dense_features(x: Tensor) -> Tensor:
    """x itself or a copy: kernels take any stride but that of the last dimension, which must be 1."""
    return x if x.stride(-1) == 1 else x.contiguous()

"""Masks, inputs and the exact results that the tests of the attention kernels share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from glm_kernels.attention import Visibility
from glm_kernels.attention.reference import attention_reference
from glm_kernels.dropout import DropoutKey, RowKeys, Site
from glm_kernels.dropout.philox_reference import attention_kept
from glm_kernels.tiles import Tile

KEY = DropoutKey(seed=7, layer=3, site=Site.ATTENTION)


def tile(block_m: int, block_n: int) -> Tile:
    return Tile({"BLOCK_M": block_m, "BLOCK_N": block_n}, num_warps=4, num_stages=2)


def from_rows(key_start: np.ndarray, key_end: np.ndarray) -> Visibility:
    """Any mask whose non-empty rows have intervals with ends that never fall: its columns are intervals too."""
    T = len(key_start)
    key = np.arange(T)
    visible = (key_start[:, None] <= key) & (key < key_end[:, None])
    seen = visible.any(axis=0)
    query_start = np.where(seen, visible.argmax(axis=0), 0)
    query_end = np.where(seen, T - visible[::-1].argmax(axis=0), 0)
    bounds = (key_start, key_end, query_start, query_end)
    return Visibility(*(torch.from_numpy(bound.astype(np.int32)) for bound in bounds), segments=())


def glm(*shapes: tuple[int, int], padding: int = 0) -> Visibility:
    """Segments of (length of A, length of B), one after another."""
    segments, start = [], 0
    for part_a, part_b in shapes:
        segments.append((start, part_a, start + part_a + part_b))
        start += part_a + part_b
    return Visibility.from_segments(segments, start + padding)


def mask(name: str, T: int) -> Visibility:
    """A mask of each kind there is, of T tokens."""
    index, whole = np.arange(T), np.full(T, T)
    third = T // 3
    match name:
        case "full":
            return from_rows(0 * index, whole)
        case "causal":
            return from_rows(0 * index, index + 1)
        case "prefix":
            return glm((T - third, third))
        case "document":
            ends = np.where(index < third, third, T)
            return from_rows(np.where(index < third, 0, third), ends)
        case "window":
            return from_rows(np.maximum(index - 20, 0), index + 1)
        case "packed":
            return glm((third, third // 2), (1, third), (T - 3 * third, third - third // 2 - 1))
        case "padding":
            return glm((third, third), padding=T - 2 * third)
        case "empty rows":
            rows = index % 5 != 2
            return from_rows(0 * index, np.where(rows, index + 1, 0))
    raise ValueError(name)


def inputs(T: int, heads: int, head_dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    """Query, key, value and an upstream gradient: [T, heads, d] each; the first three are views of one projection."""
    generator = torch.Generator().manual_seed(seed)
    fused = torch.randn(T, 3 * heads * head_dim, generator=generator, dtype=torch.float64).to(dtype)
    upstream = torch.randn(T, heads, head_dim, generator=generator, dtype=torch.float64).to(dtype)
    return [*(part.unflatten(1, (heads, head_dim)) for part in fused.chunk(3, dim=1)), upstream]


def gradients(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """The output of function(query, key, value), and their gradients."""
    *inputs, upstream = inputs
    leaves = [x.detach().requires_grad_() for x in inputs]
    output = function(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, upstream)]


def dropped(row_keys: RowKeys, probability: float, heads: range, key: DropoutKey = KEY) -> Tensor | None:
    """What the kernels are to drop: bool [heads, T, T]."""
    if not probability:
        return None
    kept = attention_kept(probability, row_keys.token_key.numpy(), row_keys.token.numpy(), heads=heads, key=key)
    return torch.from_numpy(~kept)


def plain(
    inputs: list[Tensor], visibility: Visibility, dtype: torch.dtype, probability: float = 0.0, drops=None
) -> list[Tensor]:
    """The formula's output and gradients, computed in a type."""
    return gradients(
        lambda q, k, v: attention_reference(q, k, v, visibility.dense(), dropout=probability, dropped=drops),
        [x.to(dtype) for x in inputs],
    )


def assert_as_exact_as_torch(got: list[Tensor], inputs: list[Tensor], visibility: Visibility, **dropout) -> None:
    """fp32: within 2e-6 of fp64; bf16 and fp16: at most twice the error of the same formula in that type."""
    dtype = inputs[0].dtype
    exact = plain(inputs, visibility, torch.float64, **dropout)
    same_type = plain(inputs, visibility, dtype, **dropout)
    for name, kernel, torch_s, right in zip(("output", "dq", "dk", "dv"), got, same_type, exact, strict=True):
        assert kernel.dtype == dtype
        error = (kernel.double() - right).abs().max().item()
        if dtype == torch.float32:
            bound = 2e-6 * max(1.0, right.abs().max().item())
        else:
            bound = 2 * (torch_s.double() - right).abs().max().item() + 1e-5
        assert error <= bound, f"{name}: {error:.2e} > {bound:.2e}"

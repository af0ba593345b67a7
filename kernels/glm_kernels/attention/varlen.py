"""Attention by two calls of FlashAttention over sequences of various lengths: exact, without a kernel of ours.

Part A attends to part A in full. Part B attends to both, and of B only up to itself: that is what
FlashAttention calls causal where there are fewer queries than keys, aligned at the lower right corner.
So one call takes the part A of every segment, another the queries of B with the keys of A and B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from glm_kernels.attention.refusals import refuse_dropout, refuse_types
from glm_kernels.attention.visibility import Visibility
from glm_kernels.dropout.keys import DropoutKey, RowKeys

FlashVarlen = Callable[..., Tensor]


@dataclass(frozen=True)
class Call:
    """One call: which rows ask, which are asked, and where each sequence of them ends."""

    query_rows: Tensor  # int64 [Q], places in the row
    key_rows: Tensor  # int64 [K]
    query_ends: Tensor  # int32 [S + 1], from 0
    key_ends: Tensor  # int32 [S + 1]
    longest_query: int
    longest_key: int
    causal: bool


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    *,
    dropout: float = 0.0,
    row_keys: RowKeys | None = None,
    dropout_key: DropoutKey | None = None,
    first_head: int = 0,
) -> Tensor:
    """Interval attention; [T, heads, d] each -> [T, heads, d], padding rows are 0. See op.attention.

    Raises:
        ValueError: dropout, a type of number, or a device that FlashAttention does not do.
    """
    refuse_dropout("flash-varlen", dropout)
    refuse_types("flash-varlen", query, (torch.bfloat16, torch.float16))
    flash = flash_varlen(query.device)
    if not visibility.segments:
        return (query + key + value).mul(0)  # a row of padding only must not lose its graph
    output = torch.zeros_like(query)
    for call in flash_calls(visibility.segments, query.device):
        rows = flash(query[call.query_rows], key[call.key_rows], value[call.key_rows], call)
        output = output.index_copy(0, call.query_rows, rows)
    return output


@lru_cache(maxsize=4)  # all layers of a model ask for the same row
def flash_calls(segments: tuple[tuple[int, int, int], ...], device: torch.device) -> tuple[Call, ...]:
    """The calls that segments (start, length of part A, end) need, at most two."""
    bounds = np.array(segments, dtype=np.int64).reshape(-1, 3)
    starts, ends = bounds[:, 0], bounds[:, 2]
    boundaries = starts + bounds[:, 1]
    has_a, has_b = boundaries > starts, ends > boundaries
    part_a = starts[has_a], boundaries[has_a]
    part_b = boundaries[has_b], ends[has_b]
    both = starts[has_b], ends[has_b]
    calls = []
    if has_a.any():
        calls.append(_call(part_a, part_a, causal=False, device=device))
    if has_b.any():
        calls.append(_call(part_b, both, causal=True, device=device))
    return tuple(calls)


Ranges = tuple[np.ndarray, np.ndarray]  # starts, ends


def _call(queries: Ranges, keys: Ranges, *, causal: bool, device: torch.device) -> Call:
    query_lengths, key_lengths = (ends - starts for starts, ends in (queries, keys))

    def rows(starts: np.ndarray, ends: np.ndarray) -> Tensor:
        places = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
        return torch.from_numpy(np.concatenate(places)).to(device)

    def running(lengths: np.ndarray) -> Tensor:
        return torch.from_numpy(np.concatenate([[0], lengths.cumsum()]).astype(np.int32)).to(device)

    return Call(
        query_rows=rows(*queries),
        key_rows=rows(*keys),
        query_ends=running(query_lengths),
        key_ends=running(key_lengths),
        longest_query=int(query_lengths.max()),
        longest_key=int(key_lengths.max()),
        causal=causal,
    )


def flash_varlen(device: torch.device) -> FlashVarlen:
    """FlashAttention as (query, key, value, call) -> output: of the package flash_attn, or the one inside torch.

    Raises:
        ValueError: there is none for this device.
    """
    if device.type != "cuda":
        raise ValueError(f"attention by flash-varlen needs a GPU, the row is on {device.type}; use segments")
    return _of_flash_attn if find_spec("flash_attn") else _of_torch


def _of_flash_attn(query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
    from flash_attn import flash_attn_varlen_func

    return flash_attn_varlen_func(
        query,
        key,
        value,
        call.query_ends,
        call.key_ends,
        call.longest_query,
        call.longest_key,
        causal=call.causal,
    )


def _of_torch(query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(
        query,
        key,
        value,
        call.query_ends,
        call.key_ends,
        call.longest_query,
        call.longest_key,
        window_size=(-1, 0) if call.causal else (-1, -1),
    )

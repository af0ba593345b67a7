"""Starts the attention kernels: strides, grids, tiles, and the memory of the results. Nothing here waits for a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from glm_kernels.attention.tiles import DELTA_ROWS, head_parts, tile_for
from glm_kernels.attention.triton_delta import delta_kernel
from glm_kernels.attention.triton_forward import forward_kernel
from glm_kernels.attention.triton_key_value import key_value_kernel
from glm_kernels.attention.triton_query import query_kernel
from glm_kernels.dropout.keys import DropoutKey, drop_threshold
from glm_kernels.dropout.masks import keep_scale
from glm_kernels.strides import with_near_rows
from glm_kernels.tiles import Tile

_LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Intervals:
    """`Visibility` without its host part: int32 [T] each."""

    key_start: Tensor
    key_end: Tensor
    query_start: Tensor
    query_end: Tensor


@dataclass(frozen=True)
class Dropping:
    """Keyed dropout of the attention weights.

    Args:
        token_key, token: int64 and int32 [T], of RowKeys.
        first_head: of the tensors' heads among those of the layer.
    """

    probability: float
    token_key: Tensor
    token: Tensor
    key: DropoutKey
    first_head: int


def launch_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    intervals: Intervals,
    dropping: Dropping | None,
    *,
    long_segments: bool = False,
    tile: Tile | None = None,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention and its log-sum-exp: [T, heads, d] each -> [T, heads, d], fp32 [heads, T].

    Args:
        long_segments: `Visibility.has_long_segments`.
        tile: default: the table's.
        counts: int32 [heads, tiles of rows, 2], filled with the full and the border tiles that the kernel touched.
    """
    query, key, value = (with_near_rows(x) for x in (query, key, value))
    T, heads, head_dim = query.shape
    output = query.new_empty(T, heads, head_dim)
    log_sum_exp = query.new_empty(heads, T, dtype=torch.float32)
    tile = tile or tile_for("forward", query, dropout=dropping is not None, long_segments=long_segments)
    forward_kernel[_grid(T, tile.blocks["BLOCK_M"], heads)](
        query,
        key,
        value,
        output,
        log_sum_exp,
        intervals.key_start,
        intervals.key_end,
        *_dropping_tensors(dropping),
        counts,
        T,
        *_strides(query, key, value),
        output.stride(0),
        _LOG2_E / math.sqrt(head_dim),
        *_dropping_numbers(dropping),
        **_constants(head_dim, dropping, counts, tile),
    )
    return output, log_sum_exp


def launch_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_sum_exp: Tensor,
    grad_log_sum_exp: Tensor | None,
    intervals: Intervals,
    dropping: Dropping | None,
    *,
    long_segments: bool = False,
    tiles: tuple[Tile, Tile] | None = None,
    counts: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value, [T, heads, d] each; the same bits every time.

    Args:
        grad_log_sum_exp: fp32 [heads, T], of the second result; None: 0.
        tiles: of the kernel of keys and values and of that of queries; default: the tables'.
        counts: of the two kernels, as in `launch_forward`.
    """
    grad_output, query, key, value = (with_near_rows(x) for x in (grad_output, query, key, value))
    T, heads, head_dim = query.shape
    output, log_sum_exp = output.contiguous(), log_sum_exp.contiguous()  # as launch_forward made them, mostly
    grad_query, grad_key, grad_value = (torch.empty_like(output) for _ in range(3))
    kept = 1.0 - dropping.probability if dropping else 1.0  # the inverse of keep_scale, and 0 where that is 0
    delta = _delta(output, grad_output, kept)
    if grad_log_sum_exp is not None:
        # d lse / d score is the weight itself, so its gradient joins delta, which every weight is multiplied by.
        delta.sub_(grad_log_sum_exp, alpha=kept)
    dropout = dropping is not None
    of_keys, of_queries = tiles or (
        tile_for(kernel, query, dropout=dropout, long_segments=long_segments) for kernel in ("key_value", "query")
    )
    key_counts, query_counts = counts or (None, None)
    strides = (*_strides(query, key, value, grad_output), output.stride(0))
    numbers = (1 / math.sqrt(head_dim), *_dropping_numbers(dropping))
    key_value_kernel[_grid(T, of_keys.blocks["BLOCK_N"], heads)](
        query,
        key,
        value,
        grad_output,
        log_sum_exp,
        delta,
        grad_key,
        grad_value,
        intervals.query_start,
        intervals.query_end,
        *_dropping_tensors(dropping),
        key_counts,
        T,
        *strides,
        *numbers,
        **_constants(head_dim, dropping, key_counts, of_keys),
    )
    query_kernel[_grid(T, of_queries.blocks["BLOCK_M"], heads)](
        query,
        key,
        value,
        grad_output,
        log_sum_exp,
        delta,
        grad_query,
        intervals.key_start,
        intervals.key_end,
        *_dropping_tensors(dropping),
        query_counts,
        T,
        *strides,
        *numbers,
        **_constants(head_dim, dropping, query_counts, of_queries),
    )
    return grad_query, grad_key, grad_value


def _delta(output: Tensor, grad_output: Tensor, factor: float) -> Tensor:
    T, heads, head_dim = output.shape
    delta = output.new_empty(heads, T, dtype=torch.float32)
    first, second = head_parts(head_dim)
    delta_kernel[_grid(T, DELTA_ROWS, heads)](
        output,
        grad_output,
        delta,
        T,
        output.stride(0),
        *_strides(grad_output),
        factor,
        HEAD_DIM=head_dim,
        FIRST=first,
        SECOND=second,
        BLOCK_M=DELTA_ROWS,
    )
    return delta


def _grid(length: int, block: int, heads: int) -> tuple[int, int]:
    return triton.cdiv(length, block), heads


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for x in tensors for stride in x.stride()[:2]]


def _dropping_tensors(dropping: Dropping | None) -> tuple[Tensor | None, Tensor | None]:
    return (dropping.token_key, dropping.token) if dropping else (None, None)


def _dropping_numbers(dropping: Dropping | None) -> tuple[int, int, float, int]:
    if dropping is None:
        return 0, 0, 1.0, 0
    probability = dropping.probability
    return dropping.key.philox_key(), drop_threshold(probability), keep_scale(probability), dropping.first_head


def _constants(head_dim: int, dropping: Dropping | None, counts: Tensor | None, tile: Tile) -> dict[str, int]:
    first, second = head_parts(head_dim)
    return {
        "HEAD_DIM": head_dim,
        "FIRST": first,
        "SECOND": second,
        "DROPOUT": dropping is not None,
        "COUNT": counts is not None,
        **tile.launch(),
    }

"""The gradient of an embedding table by our kernels: sums by atomics, or in an order that never changes."""

from __future__ import annotations

import torch
from torch import Tensor

from glm_kernels.dropout.keys import drop_threshold
from glm_kernels.dropout.masks import keep_scale
from glm_kernels.embedding.tiles import TILES, entry_of
from glm_kernels.operators import kernel_operator
from glm_kernels.strides import with_dense_features
from glm_kernels.tiles import architecture, find_tile


@kernel_operator("embedding_table_gradient", upstream="float [N, H]", ids="int64 [N]", token_key="int64 [N]")
def table_gradient(
    upstream: Tensor,
    ids: Tensor,
    token_key: Tensor | None,
    first_id: int,
    rows: int,
    philox_key: int,
    probability: float,
    dtype: torch.dtype,
    deterministic: bool,
) -> Tensor:
    """The gradient [rows, H] of a table, in dtype, from that of the sums [N, H] that its rows went into.

    Added up in fp32. The rows belong to the ids from first_id on; other ids int64 [N] add nothing.

    Args:
        token_key: int64 [N]; with it upstream is that of dropout(sums), keyed by philox_key.
        deterministic: the same bits every time, at the price of sorting the ids.
    """
    upstream = with_dense_features(upstream)
    ids, token_key = ids.contiguous(), None if token_key is None else token_key.contiguous()
    dropout = (philox_key, drop_threshold(probability), keep_scale(probability) if token_key is not None else 1.0)
    if deterministic:
        return _sorted(upstream, ids, token_key, first_id, rows, dropout, dtype)
    return _atomic(upstream, ids, token_key, first_id, rows, dropout).to(dtype)


@table_gradient.register_fake
def _(upstream, ids, token_key, first_id, rows, philox_key, probability, dtype, deterministic):
    return upstream.new_empty(rows, upstream.shape[1], dtype=dtype)


def _atomic(upstream: Tensor, ids: Tensor, token_key: Tensor | None, first_id: int, rows: int, dropout) -> Tensor:
    from glm_kernels.embedding.triton_kernels import table_gradient_kernel

    tokens, width = upstream.shape
    sums = upstream.new_zeros(rows, width, dtype=torch.float32)
    tile = find_tile(TILES, entry_of("embedding_gradient", upstream.dtype), architecture(upstream.device))
    if upstream.numel():
        table_gradient_kernel[_grid(upstream, tile.blocks)](
            upstream,
            ids,
            sums,
            token_key,
            upstream.stride(0),
            tokens,
            width,
            first_id,
            rows,
            *dropout,
            **tile.launch(),
        )
    return sums


def _sorted(
    upstream: Tensor,
    ids: Tensor,
    token_key: Tensor | None,
    first_id: int,
    rows: int,
    dropout: tuple[int, int, float],
    dtype: torch.dtype,
) -> Tensor:
    from glm_kernels.embedding.triton_kernels import carried_gradient_kernel, sorted_gradient_kernel

    tokens, width = upstream.shape
    gradient = upstream.new_zeros(rows, width, dtype=dtype)
    if not upstream.numel():
        return gradient
    row = ids - first_id
    # Rows of other shards come last, under a number that no row of this one has.
    sorted_rows, order = row.where((row >= 0) & (row < rows), rows).sort(stable=True)
    here = architecture(upstream.device)
    tile = find_tile(TILES, entry_of("embedding_sorted", upstream.dtype), here)
    grid = _grid(upstream, tile.blocks)
    partial = upstream.new_empty(grid[0], 2, width, dtype=torch.float32)
    sorted_gradient_kernel[grid](
        upstream,
        order,
        sorted_rows,
        gradient,
        partial,
        token_key,
        upstream.stride(0),
        tokens,
        width,
        rows,
        *dropout,
        **tile.launch(),
    )
    carried = find_tile(TILES, "embedding_carried", here)
    carried_gradient_kernel[(grid[0], -(-width // carried.blocks["BLOCK_H"]))](
        sorted_rows,
        partial,
        gradient,
        tokens,
        width,
        rows,
        BLOCK_T=tile.blocks["BLOCK_T"],
        **carried.launch(),
    )
    return gradient


def _grid(x: Tensor, blocks) -> tuple[int, int]:
    tokens, width = x.shape
    return -(-tokens // blocks["BLOCK_T"]), -(-width // blocks["BLOCK_H"])

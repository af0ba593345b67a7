"""Attention by FlexAttention, its block mask built from the intervals.

`create_block_mask` evaluates the mask at all T² points of a row for every batch. The intervals say
which blocks of 128 x 128 a block of queries touches, and which of them it sees whole: a few numbers
per block of the row, laid out on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from glm_kernels.attention.refusals import refuse_dropout, refuse_types
from glm_kernels.attention.visibility import Visibility
from glm_kernels.dropout.keys import DropoutKey, RowKeys

BLOCK = 128
_FIELDS = (
    *("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"),
    *("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"),
)


def flex_interval_attention(
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
        ValueError: dropout, a type of number, or gradients on a CPU, which FlexAttention does not do.
    """
    refuse_dropout("flex", dropout)
    refuse_types("flex", query, (torch.float32, torch.bfloat16, torch.float16))
    if query.device.type == "cpu":
        if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
            raise ValueError("attention by flex has no gradients on a CPU; use segments")
        # FlexAttention itself refuses by the tensors, whether gradients are recorded or not.
        query, key, value = query.detach(), key.detach(), value.detach()
    mask = block_mask(visibility)
    query, key, value = (x.transpose(0, 1)[None] for x in (query, key, value))
    return _compiled()(query, key, value, block_mask=mask)[0].transpose(0, 1)


@cache
def _compiled() -> Callable[..., Tensor]:
    # Eager FlexAttention computes every pair. Rows differ in length, and each length would be compiled for itself.
    return torch.compile(flex_attention, dynamic=True)


def block_mask(visibility: Visibility) -> BlockMask:
    """The mask as FlexAttention takes it: for every 128 queries the blocks of keys in part and in whole, and back."""
    bounds = visibility.key_start, visibility.key_end
    device = visibility.key_start.device
    by_query, by_key = _block_lists(visibility.segments, visibility.length, device)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (bounds[0][query] <= key) & (key < bounds[1][query])

    return BlockMask(
        (visibility.length, visibility.length),
        **dict(zip(_FIELDS, (*by_query, *by_key), strict=True)),
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=visible,
    )


BlockLists = tuple[Tensor, Tensor, Tensor, Tensor]  # numbers and indices of partial blocks, then of whole ones


@lru_cache(maxsize=4)  # all layers of a model ask for the same row
def _block_lists(
    segments: tuple[tuple[int, int, int], ...], length: int, device: torch.device
) -> tuple[BlockLists, BlockLists]:
    row = Visibility.from_segments(segments, length)
    by_query = block_lists(row.key_start.numpy(), row.key_end.numpy())
    by_key = block_lists(row.query_start.numpy(), row.query_end.numpy())
    return tuple(tuple(torch.from_numpy(x)[None, None].to(device) for x in lists) for lists in (by_query, by_key))


def block_lists(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Which blocks of 128 each block of 128 intervals touches in part, and which all of its intervals cover.

    Args:
        starts, ends: int32 [T], the interval of each place; empty where they are equal.

    Returns:
        int32: partial blocks of each of B blocks [B], which ones [B, B] in front; then the same of whole blocks.
    """
    blocks = -(-len(starts) // BLOCK)
    first = np.arange(blocks) * BLOCK
    empty = starts >= ends
    outside = len(starts) + BLOCK  # right of every block
    low = np.minimum.reduceat(np.where(empty, outside, starts), first)
    high = np.maximum.reduceat(np.where(empty, 0, ends), first)
    # A place that sees nothing leaves its block without a whole one.
    start = np.maximum.reduceat(np.where(empty, outside, starts), first)
    end = np.minimum.reduceat(np.where(empty, 0, ends), first)
    column = np.arange(blocks)
    touched = (column >= low[:, None] // BLOCK) & (column * BLOCK < high[:, None])
    whole = (column * BLOCK >= start[:, None]) & ((column + 1) * BLOCK <= end[:, None])
    return *_listed(touched & ~whole), *_listed(whole)


def _listed(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many are chosen in each row, and their columns first in the row: bool [B, B] -> int32 [B], [B, B]."""
    order = np.argsort(~chosen, axis=1, kind="stable")
    return chosen.sum(axis=1).astype(np.int32), order.astype(np.int32)

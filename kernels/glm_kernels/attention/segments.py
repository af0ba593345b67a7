"""Attention segment by segment, on any device: exact, and nothing is quadratic in the row.

Within a segment part A attends to part A in full, and part B to both with a causal corner. Both
are dense problems that the stock kernels are good at, so the row costs the sum over its segments
of their visible areas instead of T².
"""

from __future__ import annotations

import math
from bisect import bisect_right

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from glm_kernels.attention.visibility import Visibility
from glm_kernels.dropout.keys import DropoutKey, RowKeys
from glm_kernels.dropout.masks import attention_drops, keep_scale, kept_bytes

_CACHED_SCORES = 1 << 20  # of the heads that are worked on at a time: beyond it each pass over them waits for memory


def segment_attention(
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
    """Interval attention; [T, heads, d] each -> [T, heads, d], padding rows are 0. See op.attention."""
    segments = visibility.segments
    lengths = [end - start for start, _, end in segments]
    lengths.append(visibility.length - sum(lengths))
    # One split, not S slices: the backward of a slice writes a gradient of the whole row.
    queries, keys, values = (x.split(lengths) for x in (query, key, value))
    if dropout:
        heads = range(first_head, first_head + query.shape[1])
        drops = _segment_drops(visibility, heads, dropout, row_keys, dropout_key)
        rows = [
            _explicit_rows(q, k, v, part_a, drop.to(query.device), keep_scale(dropout))
            for q, k, v, (_, part_a, _), drop in zip(queries, keys, values, segments, drops, strict=False)
        ]
    else:
        # The CPU's fused kernel multiplies bf16 slower than fp32; plain products are three times as fast.
        explicit = query.dtype == torch.bfloat16 and query.device.type == "cpu"
        rows_of = _explicit_rows if explicit else _fused_rows
        rows = [
            rows_of(q, k, v, part_a) for q, k, v, (_, part_a, _) in zip(queries, keys, values, segments, strict=False)
        ]
    padding = (queries[-1] + keys[-1] + values[-1]).mul(0)  # a row of padding only must not lose its graph
    return torch.cat([*rows, padding])


def _fused_rows(query: Tensor, key: Tensor, value: Tensor, part_a: int) -> Tensor:
    """One segment without dropout; [n, heads, d] each -> [n, heads, d]."""
    query, key, value = (x.transpose(0, 1)[None] for x in (query, key, value))
    rows = []
    if part_a:
        in_a = slice(None, part_a)
        rows.append(scaled_dot_product_attention(query[:, :, in_a], key[:, :, in_a], value[:, :, in_a]))
    if part_a < query.shape[2]:
        visible = _part_b_visible(query.shape[2], part_a, query.device)
        rows.append(scaled_dot_product_attention(query[:, :, part_a:], key, value, attn_mask=visible))
    return torch.cat(rows, dim=2)[0].transpose(0, 1)


def _explicit_rows(
    query: Tensor, key: Tensor, value: Tensor, part_a: int, drop: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """One segment as an explicit softmax; drop: bool [heads, a·a + b·n] or none -> [n, heads, d]."""
    length, heads, _ = query.shape
    together = max(1, _CACHED_SCORES // length**2)
    kept = [None] * heads if drop is None else kept_bytes(drop).split(together)
    parts = zip(*(x.split(together, dim=1) for x in (query, key, value)), kept, strict=False)
    return torch.cat([_rows_of_heads(q, k, v, part_a, keep, scale) for q, k, v, keep in parts], dim=1)


def _rows_of_heads(query: Tensor, key: Tensor, value: Tensor, part_a: int, kept: Tensor | None, scale: float) -> Tensor:
    """`_explicit_rows` of some heads at once; kept: int8 [heads, a·a + b·n] or none."""
    length, heads, _ = query.shape
    query = query.transpose(0, 1) / math.sqrt(query.shape[-1])
    key = key.permute(1, 2, 0)
    value = value.transpose(0, 1) * scale  # here rather than on the weights: d columns, not n
    rows = []
    area_a = part_a * part_a
    if part_a:
        weights = _softmax(query[:, :part_a] @ key[:, :, :part_a])
        if kept is not None:
            weights = weights * kept[:, :area_a].view(heads, part_a, part_a)
        rows.append(weights @ value[:, :part_a])
    if part_a < length:
        scores = query[:, part_a:] @ key
        # Added, so that the gradient needs no mask: where a weight is 0 its score's is 0 already.
        weights = _softmax(scores.add_(_part_b_bias(length, part_a, scores)))
        if kept is not None:
            weights = weights * kept[:, area_a:].view(heads, length - part_a, length)
        rows.append(weights @ value)
    return torch.cat(rows, dim=1).transpose(0, 1)


def _softmax(scores: Tensor) -> Tensor:
    """Over the keys; the sum is taken in fp32 at least."""
    wide = torch.float32 if scores.dtype in (torch.bfloat16, torch.float16) else scores.dtype
    return scores.softmax(dim=-1, dtype=wide).to(scores.dtype)


def _part_b_bias(length: int, part_a: int, scores: Tensor) -> Tensor:
    """`_part_b_visible` to be added to scores: 0 and −inf, [length − part_a, length]."""
    return scores.new_full((length - part_a, length), -math.inf).triu_(diagonal=part_a + 1)


def _part_b_visible(length: int, part_a: int, device: torch.device) -> Tensor:
    """What part B sees of its segment: bool [length − part_a, length], causal from the lower right corner."""
    return torch.ones(length - part_a, length, dtype=torch.bool, device=device).tril(diagonal=part_a)


def _segment_drops(
    visibility: Visibility, heads: range, probability: float, row_keys: RowKeys, key: DropoutKey
) -> list[Tensor]:
    """The drop masks of all segments, each keyed by its sample and its place there: bool [heads, a·a + b·n]."""
    starts = [start for _, start, _ in row_keys.spans]
    drops = []
    for start, part_a, end in visibility.segments:
        sample, begin, _ = row_keys.spans[bisect_right(starts, start) - 1]
        area = part_a * part_a + (end - start - part_a) * (end - start)
        drops.append(
            attention_drops(
                probability,
                len(heads),
                area,
                sample=sample,
                place=start - begin,
                key=key,
                first_head=heads.start,
            )
        )
    return drops

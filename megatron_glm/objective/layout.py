"""Part A and part B of every segment, as the arrays that the model reads (GLM paper, section 2.1.1).

    text      [CLS] x1 x2 x3 x4 x5 x6 eos      spans: x3, and x5 x6; part B holds the second one first
    input     [CLS] x1 x2  M x4  M eos  sop  x5  x6  sop  x3
    target      –    –  –  –  –  –  –    x5  x6 eop   x3 eop
    row 0       0    1  2  3  4  5  6     5   5   5    3   3
    row 1       0    0  0  0  0  0  0     1   2   3    1   2

A span in prefix form ends its document: there is no eop, and its last token is no input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from megatron_glm.objective.spans import Span


class Layout(NamedTuple):
    """The arrays of `Sample`, of the same names."""

    input_ids: np.ndarray
    targets: np.ndarray
    loss_mask: np.ndarray
    position_ids: np.ndarray
    block_position_ids: np.ndarray
    segments: np.ndarray


def layout(
    tokens: np.ndarray,
    bounds: np.ndarray,
    spans: Sequence[Span],
    span_order: np.ndarray,
    *,
    mask: int,
    start_of_piece: int,
    end_of_piece: int,
    block_tokens: np.ndarray | None = None,
) -> Layout:
    """Lay out S segments with K spans: T = n + 2 K tokens, and one fewer for each span in prefix form.

    Args:
        tokens: int32 [n], the text of the segments.
        bounds: int64 [S + 1], where they begin, and n.
        spans: in text order, not empty, with an unmasked token between any two of a segment; none starts one.
        span_order: int64 [K], indices of `spans` in the order of part B: those of segment 0 first, and so on.
        block_tokens: int32 [n], the text as the inputs of part B have it; default: `tokens`.
    """
    starts = np.fromiter((span.start for span in spans), np.int64, len(spans))
    stops = np.fromiter((span.stop for span in spans), np.int64, len(spans))
    has_end = np.fromiter((not span.ends_text for span in spans), bool, len(spans))
    return lay_out(
        tokens,
        bounds,
        starts,
        stops,
        has_end,
        span_order,
        masks=mask,
        start_of_piece=start_of_piece,
        end_of_piece=end_of_piece,
        block_tokens=block_tokens,
    )


def lay_out(
    tokens: np.ndarray,
    bounds: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    has_end: np.ndarray,
    span_order: np.ndarray,
    *,
    masks: int | np.ndarray,
    start_of_piece: int,
    end_of_piece: int,
    block_tokens: np.ndarray | None = None,
) -> Layout:
    """`layout` with its spans as arrays; the segments may be those of many samples.

    Args:
        starts, stops: int64 [K], of the spans.
        has_end: bool [K], false for spans in prefix form.
        masks: the id that stands for a span, or one for each of them: int [K].
    """
    n, num_segments = len(tokens), len(bounds) - 1
    span_segment = np.searchsorted(bounds, starts, side="right") - 1

    # Part A: of each span only the first token stays, as the mask.
    hidden = np.zeros(n + 1, np.int8)
    hidden[starts + 1] += 1
    hidden[stops] -= 1
    stays = np.cumsum(hidden[:n], dtype=np.int8) == 0
    kept_before = np.zeros(n + 1, np.int64)  # tokens of part A before each place of the text
    np.cumsum(stays, out=kept_before[1:])
    corrupted = tokens.copy()
    corrupted[starts] = masks
    part_a = corrupted[stays]
    a_bounds = kept_before[bounds]
    mask_position = kept_before[starts] - a_bounds[span_segment]

    # Part B: the spans one after another, each with its slots for [sop, tokens].
    lengths = (stops - starts)[span_order]
    has_end = has_end[span_order]
    slots = lengths + has_end
    first_slot = np.cumsum(slots) - slots
    span_of = np.repeat(np.arange(len(starts)), slots)
    in_span = np.arange(len(span_of)) - first_slot[span_of]
    source = starts[span_order][span_of] + in_span
    part_b = (tokens if block_tokens is None else block_tokens)[source - 1]
    part_b[first_slot] = start_of_piece
    targets_b = tokens.take(source, mode="clip")
    targets_b[(first_slot + lengths)[has_end]] = end_of_piece

    # Together: A1 B1 A2 B2 …
    b_lengths = np.bincount(span_segment[span_order[span_of]], minlength=num_segments)
    b_bounds = np.zeros(num_segments + 1, np.int64)
    np.cumsum(b_lengths, out=b_bounds[1:])
    a_lengths = np.diff(a_bounds)
    a_places = np.arange(len(part_a)) + np.repeat(b_bounds[:-1], a_lengths)
    b_places = np.arange(len(part_b)) + np.repeat(a_bounds[1:], b_lengths)
    T = len(part_a) + len(part_b)
    input_ids, targets, position_ids = np.empty((3, T), np.int32)
    input_ids[a_places] = targets[a_places] = part_a
    input_ids[b_places] = part_b
    targets[b_places] = targets_b
    position_ids[a_places] = np.arange(len(part_a)) - np.repeat(a_bounds[:-1], a_lengths)
    position_ids[b_places] = mask_position[span_order][span_of]
    block_position_ids = np.zeros(T, np.int32)
    block_position_ids[b_places] = in_span + 1
    loss_mask = np.zeros(T, bool)
    loss_mask[b_places] = True
    ends = a_bounds + b_bounds
    segments = np.stack([ends[:-1], a_lengths, ends[1:]], axis=1).astype(np.int32)
    return Layout(input_ids, targets, loss_mask, position_ids, block_position_ids, segments)

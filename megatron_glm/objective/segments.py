"""From the document pieces of a window to segments, and to the runs of text that may be masked in them.

A segment has its own part A and part B. A run is a stretch of ordinary tokens between special ones:
spans are drawn run by run and never leave theirs, whether or not the documents are joined.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron_glm.objective.window import Window


@dataclass(frozen=True)
class Segments:
    """The raw text of a sample, what cannot be masked left out."""

    tokens: np.ndarray  # int32 [n]
    bounds: np.ndarray  # int64 [S + 1], from 0 to n: segment s is tokens[bounds[s] : bounds[s + 1]]
    runs: list[tuple[int, int]]  # start and stop of each run of maskable tokens, in text order
    sentence_ends: np.ndarray | None = None  # bool [n], as in the window


def segment(window: Window, maskable: np.ndarray, *, isolate: bool) -> Segments:
    """The segments of a window; pieces with nothing to mask (a bare [CLS], a lone eos) are dropped.

    Args:
        maskable: bool [vocabulary], false for special tokens.
        isolate: every piece is a segment of its own; otherwise all together are one, as in the original.
    """
    tokens, bounds, ends = window.tokens, window.starts.astype(np.int64), window.sentence_ends
    starts, stops = runs_of(maskable[tokens])
    piece = np.searchsorted(bounds, starts, side="right") - 1
    lengths = np.diff(bounds)
    useful = np.zeros(len(lengths), bool)
    useful[piece] = True
    if not useful.all():
        kept = np.repeat(useful, lengths)
        tokens = tokens[kept]
        ends = None if ends is None else ends[kept]
        dropped = np.cumsum(np.where(useful, 0, lengths))[piece]
        starts, stops = starts - dropped, stops - dropped
        bounds = np.concatenate([[0], np.cumsum(lengths[useful])])
    if not isolate:
        bounds = bounds[[0, -1]] if len(tokens) else bounds[:1]
    return Segments(tokens, bounds, list(zip(starts.tolist(), stops.tolist(), strict=True)), ends)


def cut_short(window: Window, sentence_end: np.ndarray, cls: int, length: int) -> Window:
    """The pieces of a window in shorter ones of about `length` tokens, each with its own [CLS].

    Cuts fall on the last end of a sentence that leaves at least half of `length`, else after `length`
    tokens. A cut adds a [CLS], and there are fewer than 2 n / length of them; no token is lost.

    Args:
        sentence_end: bool [vocabulary], for a window without stored ends.
        length: tokens of a piece without its [CLS], >= 3: with 2 a closing eos could be left alone, and be dropped.

    Source: `short_seq_prob` of the original.
    """
    half = (length + 1) // 2
    end = sentence_end[window.tokens] if window.sentence_ends is None else window.sentence_ends
    cuts = []
    for start, stop in zip(window.starts[:-1].tolist(), window.starts[1:].tolist(), strict=True):
        begin = start + 1  # after the [CLS]
        while stop - begin >= length + half:
            ends = np.flatnonzero(end[begin + half - 1 : begin + length])
            begin += half + int(ends[-1]) if len(ends) else length
            cuts.append(begin)
    tokens = np.insert(window.tokens, cuts, cls)
    old_starts = window.starts + np.searchsorted(cuts, window.starts)
    new_starts = np.array(cuts, np.int64) + np.arange(len(cuts))
    stored = None if window.sentence_ends is None else np.insert(window.sentence_ends, cuts, False)
    return Window(tokens, np.sort(np.concatenate([old_starts, new_starts])).astype(np.int32), stored)


def runs_of(maskable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and stops of the stretches of true: bool [n] -> int64 [R], int64 [R]."""
    padded = np.zeros(len(maskable) + 2, bool)
    padded[1:-1] = maskable
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    return edges[::2], edges[1::2]

"""Many samples as one row of tokens, so that one pass of array arithmetic serves them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatron_glm.objective.batch_spans import Runs
from megatron_glm.objective.layout import Layout
from megatron_glm.objective.segments import Segments, runs_of
from megatron_glm.objective.window import Window


@dataclass(frozen=True)
class Row:
    """The `Segments` of many samples, one after another."""

    tokens: np.ndarray  # int32 [n]
    bounds: np.ndarray  # int64 [S + 1], of the segments of all samples
    sample_bounds: np.ndarray  # int64 [samples + 1], where the samples lie in `tokens`
    segment_bounds: np.ndarray  # int64 [samples + 1], and their segments in `bounds`
    runs: Runs
    sentence_ends: np.ndarray | None  # bool [n]; none where no window has them
    stores_ends: list[bool]  # which samples' are those of their window

    def segments_of(self, sample: int) -> Segments:
        """One sample alone."""
        start, stop = self.sample_bounds[sample : sample + 2]
        first, last = self.segment_bounds[sample : sample + 2]
        bounds = np.append(self.bounds[first:last], stop) - start
        own = slice(*np.searchsorted(self.runs.starts, (start, stop)))
        starts, stops = ((edges[own] - start).tolist() for edges in (self.runs.starts, self.runs.stops))
        ends = self.sentence_ends[start:stop] if self.stores_ends[sample] else None
        return Segments(self.tokens[start:stop], bounds, list(zip(starts, stops, strict=True)), ends)


def row_of(windows: Sequence[Window], maskable: np.ndarray, isolate: np.ndarray) -> Row:
    """`segments.segment` of every window.

    Args:
        maskable: bool [vocabulary], false for special tokens.
        isolate: bool [windows], every piece is a segment of its own.
    """
    tokens, ends = np.concatenate([window.tokens for window in windows]), _sentence_ends(windows)
    pieces = np.array([len(window.starts) - 1 for window in windows])
    offsets = np.cumsum([0, *(len(window.tokens) for window in windows[:-1])])
    begins = np.concatenate([window.starts[:-1] for window in windows]) + np.repeat(offsets, pieces)
    lengths = np.diff(begins, append=len(tokens))
    sample = np.repeat(np.arange(len(windows)), pieces)

    starts, stops = runs_of(maskable[tokens])  # none crosses pieces: each begins with [CLS]
    piece = np.searchsorted(begins, starts, side="right") - 1
    useful = np.zeros(len(lengths), bool)
    useful[piece] = True
    if not useful.all():
        kept = np.repeat(useful, lengths)
        tokens, ends = tokens[kept], None if ends is None else ends[kept]
        dropped = np.cumsum(np.where(useful, 0, lengths))[piece]
        starts, stops = starts - dropped, stops - dropped
    owner, lengths = sample[useful], lengths[useful]
    begins = np.cumsum(lengths) - lengths
    sample_lengths = np.bincount(owner, lengths, len(windows)).astype(np.int64)
    sample_bounds = np.concatenate([[0], np.cumsum(sample_lengths)])
    opens = isolate[owner] | (np.diff(owner, prepend=-1) > 0)
    segment_bounds = np.concatenate([[0], np.cumsum(np.bincount(owner[opens], minlength=len(windows)))])
    samples = sample[piece]
    runs = Runs(starts, stops, samples, starts - sample_bounds[samples])
    stores_ends = [window.sentence_ends is not None for window in windows]
    bounds = np.append(begins[opens], len(tokens))
    return Row(tokens, bounds, sample_bounds, segment_bounds, runs, ends, stores_ends)


def _sentence_ends(windows: Sequence[Window]) -> np.ndarray | None:
    """Those of all windows: bool [n], false for windows that store none; none where no window does."""
    if all(window.sentence_ends is None for window in windows):
        return None
    return np.concatenate(
        [
            np.zeros(len(window.tokens), bool) if window.sentence_ends is None else window.sentence_ends
            for window in windows
        ]
    )


def parts(arrays: Layout, segment_bounds: np.ndarray) -> list[Layout]:
    """The layout of each sample, as views of those of the row.

    Args:
        segment_bounds: int64 [samples + 1], which segments are whose.
    """
    *per_token, segments = arrays
    ends = np.append(0, segments[:, 2])
    bounds = ends[segment_bounds]
    owner = np.repeat(np.arange(len(bounds) - 1), np.diff(segment_bounds))
    segments = segments - np.stack([bounds[owner], np.zeros_like(owner), bounds[owner]], axis=1).astype(np.int32)
    places, rows = bounds.tolist(), segment_bounds.tolist()
    return [
        Layout(*(array[start:stop] for array in per_token), segments[first:last])
        for start, stop, first, last in zip(places[:-1], places[1:], rows[:-1], rows[1:], strict=True)
    ]

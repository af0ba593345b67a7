"""The spans of many samples at once: those of token.py and document.py, drawn in a few passes over all runs.

The samples stand one after another in one row of tokens. Each number of a sample has an address of its own, so
what the functions for one sample draw one after another is drawn here for all runs together, the first span of
each, then the second of each: a run's lengths do not depend on how many of them the sample has room for, so
that limit is applied afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatron_glm.objective.randomness import BatchDraws, Purpose
from megatron_glm.objective.spans import SpanLengths, Spans


@dataclass(frozen=True)
class Runs:
    """Runs of maskable tokens of many samples, in the order of the row."""

    starts: np.ndarray  # int64 [R], in the row
    stops: np.ndarray  # int64 [R]
    samples: np.ndarray  # int64 [R], the sample of each
    places: np.ndarray  # int64 [R], where it starts in its sample

    def of(self, chosen: np.ndarray) -> Runs:
        """Those of some samples: bool [samples of the row]."""
        keep = chosen[self.samples]
        return Runs(self.starts[keep], self.stops[keep], self.samples[keep], self.places[keep])


@dataclass(frozen=True)
class RowSpans:
    """Spans in a row, in any order."""

    starts: np.ndarray  # int64 [K]
    stops: np.ndarray  # int64 [K]
    has_end: np.ndarray  # bool [K], false in prefix form
    yielded: np.ndarray  # int64 [samples of the row]


def token_row_spans(
    runs: Runs, draws: BatchDraws, lengths: SpanLengths, ratio: float, max_spans: np.ndarray, longest: int
) -> RowSpans:
    """`token.token_spans` of every sample.

    Args:
        max_spans: int64 [samples of the row].
        longest: tokens of a span, at most.
    """
    wanted = _least_masked(ratio, runs.stops - runs.starts)
    drawn, counts = _draw_lengths(runs, draws, lengths, wanted, np.minimum(wanted, max_spans[runs.samples]), longest)
    counts = _granted(runs, counts, max_spans)
    run = np.repeat(np.arange(len(counts)), counts)  # of each span
    nth = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
    samples, places = runs.samples[run], runs.places[run] + nth
    # The runs ascend already, so this sorts inside each run.
    arranged = np.lexsort((draws.at(Purpose.ARRANGEMENT, samples, places), run))
    span_lengths = drawn[nth, run][arranged]
    masked = np.bincount(run, span_lengths, len(counts)).astype(np.int64)
    gaps = _place_apart(
        run, nth, counts, runs.stops - runs.starts - masked + 1, draws.at(Purpose.PLACE, samples, places)
    )
    before = np.cumsum(span_lengths) - span_lengths
    before -= np.repeat(np.cumsum(masked) - masked, counts)
    starts = runs.starts[run] + gaps + before
    yielded = _by_sample(runs, np.maximum(0, wanted - masked), len(max_spans))
    return RowSpans(starts, starts + span_lengths, np.ones(len(starts), bool), yielded)


def document_row_spans(
    tokens: np.ndarray,
    runs: Runs,
    draws: BatchDraws,
    min_ratio: float,
    prefix_probability: float,
    eos: int,
    max_spans: np.ndarray,
    longest: int,
) -> RowSpans:
    """`document.document_spans` of every sample.

    Args:
        tokens: int32 [n], the row.
        max_spans: int64 [samples of the row].
        longest: tokens of a span, at most.
    """
    starts, stops = runs.starts, runs.stops
    wanted = _least_masked(min_ratio, stops - starts)
    lengths, places, forms = (
        draws.at(purpose, runs.samples, runs.places) for purpose in (Purpose.LENGTH, Purpose.PLACE, Purpose.FORM)
    )
    most = np.minimum(stops - starts, longest)
    least = np.minimum(wanted, most)
    length = least + (lengths * (most - least + 1)).astype(np.int64)
    is_prefix = forms < prefix_probability
    # No sample begins with eos, so the token behind a run that ends its sample is none either.
    closed = np.append(tokens, eos + 1)[stops] == eos
    first = np.where(is_prefix, stops - length, starts + (places * (stops - starts - length + 1)).astype(np.int64))
    last = np.where(is_prefix, stops + closed, first + length)
    served = _granted(runs, np.ones(len(starts), np.int64), max_spans) > 0
    yielded = _by_sample(runs, np.where(served, wanted - least, wanted), len(max_spans))
    return RowSpans(first[served], last[served], ~is_prefix[served], yielded)


def row_spans(spans: Spans, sample: int, sample_bounds: np.ndarray) -> RowSpans:
    """The spans of one sample at its place in the row.

    Args:
        sample_bounds: int64 [samples + 1], where the samples lie in the row.
    """
    start, found = sample_bounds[sample], spans.spans
    yielded = np.zeros(len(sample_bounds) - 1, np.int64)
    yielded[sample] = spans.yielded
    return RowSpans(
        start + np.array([span.start for span in found], np.int64),
        start + np.array([span.stop for span in found], np.int64),
        np.array([not span.ends_text for span in found], bool),
        yielded,
    )


def join(found: Sequence[RowSpans]) -> RowSpans:
    """All of them as one."""
    starts, stops, has_end = (
        np.concatenate([getattr(spans, name) for spans in found]) for name in ("starts", "stops", "has_end")
    )
    return RowSpans(starts, stops, has_end, sum(spans.yielded for spans in found))


def _least_masked(ratio: float, n: np.ndarray) -> np.ndarray:
    """`spans.least_masked` of each: int64 [R] -> int64 [R]."""
    return np.maximum(1, np.ceil(ratio * n - 1e-9).astype(np.int64))


def _draw_lengths(
    runs: Runs, draws: BatchDraws, lengths: SpanLengths, wanted: np.ndarray, most: np.ndarray, longest: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of the spans of each run as it draws them, [most.max(), R], and how many it draws, [R]."""
    drawn = np.zeros((most.max(initial=0), len(most)), np.int64)
    counts = np.zeros_like(most)
    active = np.flatnonzero(most)
    wanted, room, most = wanted[active], (runs.stops - runs.starts)[active], most[active]
    nth = 0
    while len(active):
        numbers = draws.at(Purpose.LENGTH, runs.samples[active], runs.places[active] + nth)
        length = lengths.draw_many(numbers, np.minimum(room, longest))
        drawn[nth, active] = length
        nth += 1
        counts[active] = nth
        wanted, room = wanted - length, room - length - 1
        goes_on = (wanted > 0) & (room >= 1) & (nth < most)
        active, wanted, room, most = active[goes_on], wanted[goes_on], room[goes_on], most[goes_on]
    return drawn, counts


def _granted(runs: Runs, asked: np.ndarray, max_spans: np.ndarray) -> np.ndarray:
    """How many of its spans each run gets, the longest runs of a sample first: int64 [R] -> int64 [R]."""
    order = np.lexsort((runs.starts - runs.stops, runs.samples))
    samples, asked = runs.samples[order], asked[order]
    before = np.cumsum(asked) - asked
    before -= before[np.searchsorted(samples, samples)] if len(samples) else 0
    granted = np.empty_like(asked)
    granted[order] = np.clip(max_spans[samples] - before, 0, asked)
    return granted


def _place_apart(
    run: np.ndarray, nth: np.ndarray, counts: np.ndarray, gaps: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """`spans.place_apart` of every run: which gap each span takes, ascending in a run: int64 [K].

    Args:
        run, nth: int64 [K], the run of each span and which one of the run it is.
        counts: int64 [R], spans of each run.
        gaps: int64 [R], of each run.
        numbers: float64 [K], in [0, 1).
    """
    # Runs with more spans go first, so that those with an n-th span are always a prefix.
    rank = np.argsort(-counts, kind="stable")
    column = np.empty_like(rank)
    column[rank] = np.arange(len(rank))
    column = column[run]
    most = counts.max(initial=0)
    u = np.empty((most, len(counts)))
    u[nth, column] = numbers
    chosen = np.full((most, len(counts)), np.iinfo(np.int64).max)
    first_candidate = (gaps - counts)[rank]
    with_nth = np.bincount(nth, minlength=most)
    for n, width in enumerate(with_nth.tolist()):
        candidate = first_candidate[:width] + n
        gap = (u[n, :width] * (candidate + 1)).astype(np.int64)
        taken = (chosen[:n, :width] == gap).any(axis=0)
        chosen[n, :width] = np.where(taken, candidate, gap)
    chosen.sort(axis=0)
    return chosen[nth, column]


def _by_sample(runs: Runs, values: np.ndarray, num_samples: int) -> np.ndarray:
    return np.bincount(runs.samples, values, num_samples).astype(np.int64)

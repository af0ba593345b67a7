"""The token objective: short spans, here and there (GLM paper, section 2.1.1)."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_glm.objective.randomness import Draws, Purpose
from megatron_glm.objective.segments import Segments
from megatron_glm.objective.spans import Limits, Span, SpanLengths, Spans, least_masked, longest_first, place_apart


def token_spans(segments: Segments, draws: Draws, lengths: SpanLengths, ratio: float, limits: Limits) -> Spans:
    """Spans of Poisson length in every run, until at least `ratio` of its tokens are masked."""
    n = len(segments.tokens)
    length_numbers, place_numbers, arrangement_numbers = (
        draws.per_token(purpose, n) for purpose in (Purpose.LENGTH, Purpose.PLACE, Purpose.ARRANGEMENT)
    )
    spans: list[Span] = []
    yielded = 0
    for start, stop in longest_first(segments.runs):
        wanted = least_masked(ratio, stop - start)
        if len(spans) == limits.max_spans:
            yielded += wanted
            continue
        drawn = _draw_lengths(
            lengths,
            wanted,
            room=stop - start,
            longest=limits.longest,
            numbers=length_numbers[start : start + min(wanted, limits.max_spans - len(spans))].tolist(),
        )
        yielded += max(0, wanted - sum(drawn))
        own = slice(start, start + len(drawn))  # a run has more tokens than spans, so places suffice
        # The last length is the one that passed the ratio, so the lengths are not exchangeable as drawn.
        order = arrangement_numbers[own].argsort(kind="stable").tolist()
        drawn = [drawn[i] for i in order]
        places = place_apart(drawn, stop - start, place_numbers[own].tolist())
        spans += [Span(start + place, start + place + length) for place, length in zip(places, drawn, strict=True)]
    return Spans(sorted(spans, key=lambda span: span.start), yielded)


def single_spans(segments: Segments, draws: Draws, lengths: SpanLengths, limits: Limits) -> Spans:
    """One span of Poisson length in every segment, in a run chosen in proportion to its tokens."""
    n = len(segments.tokens)
    run_numbers, length_numbers, place_numbers = (
        draws.per_token(purpose, n) for purpose in (Purpose.RUN, Purpose.LENGTH, Purpose.PLACE)
    )
    chosen = [
        _run_at(int(run_numbers[runs[0][0]] * sum(stop - start for start, stop in runs)), runs)
        for runs in _runs_by_segment(segments)
    ]
    spans = []
    for start, stop in longest_first(chosen)[: limits.max_spans]:
        length = lengths.draw(length_numbers[start], min(stop - start, limits.longest))
        place = start + int(place_numbers[start] * (stop - start - length + 1))
        spans.append(Span(place, place + length))
    return Spans(sorted(spans, key=lambda span: span.start), max(0, len(chosen) - limits.max_spans))


def _draw_lengths(lengths: SpanLengths, wanted: int, *, room: int, longest: int, numbers: Sequence[float]) -> list[int]:
    """Lengths that sum to at least `wanted` where they fit in `room` tokens, separators included."""
    drawn: list[int] = []
    for u in numbers:
        if wanted <= 0 or room < 1:
            break
        length = lengths.draw(u, min(room, longest))
        drawn.append(length)
        wanted -= length
        room -= length + 1
    return drawn


def _runs_by_segment(segments: Segments) -> list[list[tuple[int, int]]]:
    ends = segments.bounds[1:].tolist()
    grouped: list[list[tuple[int, int]]] = [[] for _ in ends]
    segment = 0
    for run in segments.runs:
        while run[0] >= ends[segment]:
            segment += 1
        grouped[segment].append(run)
    return grouped  # none is empty: segments without runs were dropped


def _run_at(token: int, runs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The run that holds the token-th maskable token."""
    for start, stop in runs:
        if token < stop - start:
            return start, stop
        token -= stop - start
    raise IndexError("the token lies behind the runs")

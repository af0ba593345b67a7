"""The sentence objective: whole sentences (GLM paper, section 2.1.2)."""

from __future__ import annotations

import numpy as np

from megatron_glm.objective.randomness import Draws, Purpose
from megatron_glm.objective.segments import Segments
from megatron_glm.objective.spans import Limits, Span, Spans, least_masked, longest_first


def sentence_spans(segments: Segments, draws: Draws, sentence_end: np.ndarray, ratio: float, limits: Limits) -> Spans:
    """Sentences in random order in every run, until at least `ratio` of its tokens are masked.

    Sentences beside a chosen one are passed over, and join it in one span only where the others do not reach the ratio.
    They end where the source says so; where it says nothing, at the last of a row of end marks ("?!").

    Args:
        sentence_end: bool [vocabulary], for segments without stored ends.
    """
    numbers = draws.per_token(Purpose.PLACE, len(segments.tokens))
    ends = segments.sentence_ends
    if ends is None:
        ends = sentence_end[segments.tokens]
        ends[:-1] &= ~ends[1:]  # special tokens are no marks, so a run's last one is never taken back
    spans: list[Span] = []
    yielded = 0
    for start, stop in longest_first(segments.runs):
        wanted = least_masked(ratio, stop - start)
        if len(spans) == limits.max_spans:
            yielded += wanted
            continue
        bounds = _sentence_bounds(ends[start:stop], limits.longest)
        order = numbers[[start + bound for bound in bounds[:-1]]].argsort(kind="stable").tolist()
        chosen = _choose(bounds, order, wanted, limits.max_spans - len(spans), limits.longest)
        spans += [Span(start + bounds[first], start + bounds[last]) for first, last in _stretches(chosen)]
        masked = sum(bounds[i + 1] - bounds[i] for i, is_chosen in enumerate(chosen) if is_chosen)
        yielded += max(0, wanted - masked)
    return Spans(sorted(spans, key=lambda span: span.start), yielded)


def _sentence_bounds(ends: np.ndarray, longest: int) -> list[int]:
    """Where the sentences of a run begin, and its length: bool [n] -> S + 1 increasing numbers from 0 to n.

    The last sentence ends where the run does. One that is longer than a span may be is taken in parts.
    """
    bounds = [0]
    for stop in [*(np.flatnonzero(ends[:-1]) + 1).tolist(), len(ends)]:
        bounds.extend(range(bounds[-1] + longest, stop, longest))
        bounds.append(stop)
    return bounds


def _choose(bounds: list[int], order: list[int], wanted: int, max_spans: int, longest: int) -> list[bool]:
    """Which sentences are masked: bool [S]."""
    chosen = [False] * (len(bounds) + 1)  # index −1 and the last stand for no sentence: no edge cases
    passed_over = []
    for sentence in order:
        if wanted <= 0 or max_spans == 0:
            return chosen[:-2]
        if chosen[sentence - 1] or chosen[sentence + 1]:
            passed_over.append(sentence)
            continue
        chosen[sentence] = True
        max_spans -= 1
        wanted -= bounds[sentence + 1] - bounds[sentence]
    for sentence in passed_over:
        if wanted <= 0:
            break
        first, last = sentence, sentence + 1
        while chosen[first - 1]:
            first -= 1
        while chosen[last]:
            last += 1
        if bounds[last] - bounds[first] <= longest:
            chosen[sentence] = True
            wanted -= bounds[sentence + 1] - bounds[sentence]
    return chosen[:-2]


def _stretches(chosen: list[bool]) -> list[tuple[int, int]]:
    """First and last + 1 of each row of chosen sentences."""
    stretches: list[tuple[int, int]] = []
    for sentence, is_chosen in enumerate(chosen):
        if is_chosen and stretches and stretches[-1][1] == sentence:
            stretches[-1] = stretches[-1][0], sentence + 1
        elif is_chosen:
            stretches.append((sentence, sentence + 1))
    return stretches

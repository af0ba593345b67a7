"""Spans to be masked: how long they are, and where they lie."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

_NEGLIGIBLE = 2.0**-60  # below what a 53-bit random number can tell from nothing


@dataclass(frozen=True)
class Span:
    """A stretch of text that part A replaces by one mask token."""

    start: int
    stop: int
    ends_text: bool = False  # prefix form: it is the end of its document, and no end-of-piece follows it


@dataclass(frozen=True)
class Spans:
    """The spans of a sample, in text order."""

    spans: list[Span]
    yielded: int  # tokens that the ratio asked for and the limits refused


@dataclass(frozen=True)
class Limits:
    """What keeps a sample inside its batch and its position tables."""

    max_spans: int  # of the sample
    longest: int  # tokens of a span, >= 1


def least_masked(ratio: float, n: int) -> int:
    """The fewest of n tokens that are a share of at least `ratio`, but at least one."""
    return max(1, math.ceil(ratio * n - 1e-9))  # 0.55 × 100 is 55, whatever binary fractions say


def longest_first(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The order in which runs are served while spans last; equal ones in text order."""
    return sorted(runs, key=lambda run: run[0] - run[1])


class SpanLengths:
    """Lengths from a Poisson distribution without zero.

    Args:
        mean: of the Poisson distribution, zero included, in tokens.
        longest: the largest length ever asked for, >= 1.

    Source: GLM paper, section 2.1.1, with mean 3.
    """

    def __init__(self, mean: float, longest: int):
        # Only products, quotients and sums: every machine gets the same table, to the last bit.
        mode = min(max(1, int(mean)), longest)
        weights = [1.0]
        for length in range(mode, 1, -1):
            weights.insert(0, weights[0] * length / mean)
        for length in range(mode + 1, longest + 1):
            weights.append(weights[-1] * mean / length)
            if weights[-1] < _NEGLIGIBLE:
                break
        self._cumulative = list(accumulate(weights))
        self._table = np.array(self._cumulative)

    def draw(self, u: float, limit: int) -> int:
        """The length that u in [0, 1) selects, given that it is at most `limit` tokens."""
        limit = min(limit, len(self._cumulative))
        return 1 + bisect_right(self._cumulative, u * self._cumulative[limit - 1], 0, limit - 1)

    def draw_many(self, u: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """`draw` of each: float64 [n], int64 [n] -> int64 [n]."""
        last = np.minimum(limit, len(self._table)) - 1
        return 1 + np.minimum(np.searchsorted(self._table, u * self._table[last], side="right"), last)


def place_apart(lengths: Sequence[int], n: int, numbers: Sequence[float]) -> list[int]:
    """Starts of spans in a text of n tokens, with at least one token between neighbours.

    All such arrangements are equally likely: each is one way to give the spans different gaps among the
    n − Σ lengths + 1 around the tokens that stay. (The original draws gaps with replacement, which makes
    close spans too rare.)

    Args:
        lengths: tokens of each span, left to right; Σ lengths + len(lengths) − 1 <= n.
        numbers: one in [0, 1) per span.

    Source: Floyd's sampling of a subset (Bentley and Floyd, 1987).
    """
    gaps = n - sum(lengths) + 1
    chosen: set[int] = set()
    for candidate, u in zip(range(gaps - len(lengths), gaps), numbers, strict=True):
        gap = int(u * (candidate + 1))
        chosen.add(candidate if gap in chosen else gap)
    before = accumulate(lengths, initial=0)
    return [gap + masked for gap, masked in zip(sorted(chosen), before, strict=False)]

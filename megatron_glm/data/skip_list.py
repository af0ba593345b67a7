"""Samples that a run leaves out: ranges of global sample indices that every step passes over.

With it the state of the data stays one integer, the next global sample: a step takes the next samples that are not
left out, whichever ranks, workers and micro-batches they are then divided over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True)
class SkipList:
    """Disjoint ranges [first, end) of global sample indices, ascending, with samples between any two."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[Sequence[int]]) -> Self:
        """Of any ranges, in any order: those that meet become one."""
        merged: list[list[int]] = []
        for first, end in sorted(ranges):
            if merged and first <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            elif first < end:
                merged.append([first, end])
        return cls(tuple((first, end) for first, end in merged))

    def take(self, start: int, count: int) -> np.ndarray:
        """The next `count` samples from `start` on that are not left out: int64 [count], ascending."""
        parts, place, left = [np.empty(0, np.int64)], start, count
        for first, end in self.ranges:
            if left and end > place:
                before = min(left, max(0, first - place))
                parts.append(np.arange(place, place + before, dtype=np.int64))
                place, left = (end, left - before) if left > before else (place + before, 0)
        return np.concatenate([*parts, np.arange(place, place + left, dtype=np.int64)])


def ranges_of(samples: np.ndarray) -> list[list[int]]:
    """Ascending samples as ranges [first, end): int64 [k] -> at most k ranges."""
    cuts = np.flatnonzero(np.diff(samples) != 1) + 1
    return [[int(part[0]), int(part[-1]) + 1] for part in np.split(samples, cuts) if part.size]

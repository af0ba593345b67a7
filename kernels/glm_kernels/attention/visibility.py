"""Who sees whom in a flat row, in four integers a token.

Part A of a segment sees all of part A; a token of part B sees part A and the part B up to itself.
Seen from a query the visible keys are one interval, and seen from a key so are the queries: the
mask of T tokens takes four int32 arrays of length T, and no device ever holds T x T of anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

LONG_SEGMENT = 2048  # tokens: above it the tiles at a segment's borders are few, however wide


@dataclass(frozen=True)
class Visibility:
    """The attention mask of a row of T tokens.

    Query i sees the keys [key_start[i], key_end[i]); key j is seen by the queries
    [query_start[j], query_end[j]). Padding stands at the end and has empty intervals. Any mask of which both
    views are intervals will do; back ends that go segment by segment need its segments.

    Source: GLM paper (arXiv 2103.10360), section 2.1.1 and figure 2(d).
    """

    key_start: Tensor  # int32 [T], as the three below
    key_end: Tensor
    query_start: Tensor
    query_end: Tensor
    segments: tuple[tuple[int, int, int], ...]  # on the host: (start, length of part A, end)
    has_long_segments: bool = field(init=False)  # whether wide tiles suit it, see tiles.py

    def __post_init__(self):
        lengths = [end - start for start, _, end in self.segments]
        # Weighted by themselves: that is where the products of queries and keys are.
        is_long = sum(n * n for n in lengths) >= LONG_SEGMENT * max(1, sum(lengths))
        object.__setattr__(self, "has_long_segments", is_long)

    @classmethod
    def from_segments(cls, segments: Iterable[Sequence[int]], length: int) -> Visibility:
        """The mask of segments (start, length of part A, end) that stand one after another in a row.

        Args:
            segments: integers [S, 3], the first at 0, each where the one before it ends.
            length: tokens of the row; those after the last segment are padding.

        Raises:
            ValueError: the segments leave a gap, overlap or do not fit.
        """
        segments = tuple((int(start), int(part_a), int(end)) for start, part_a, end in segments)
        _check(segments, length)
        index = np.arange(length, dtype=np.int32)
        key_start, key_end, query_start, query_end = (index.copy() for _ in range(4))
        for start, part_a, end in segments:
            boundary = start + part_a
            key_start[start:end] = start
            key_end[start:boundary] = boundary
            key_end[boundary:end] += 1
            query_start[start:boundary] = start
            query_end[start:end] = end
        return cls(
            *(torch.from_numpy(bound) for bound in (key_start, key_end, query_start, query_end)),
            segments=segments,
        )

    @property
    def length(self) -> int:
        """Tokens of the row, padding included."""
        return self.key_start.shape[0]

    def dense(self) -> Tensor:
        """The mask in full, bool [T, T], true where the query (row) sees the key (column): for references only."""
        key = torch.arange(self.length, device=self.key_start.device)
        return (self.key_start[:, None] <= key) & (key < self.key_end[:, None])

    def to(self, device: torch.device | str) -> Visibility:
        """The same on another device."""
        bounds = (self.key_start, self.key_end, self.query_start, self.query_end)
        return Visibility(*(bound.to(device, non_blocking=True) for bound in bounds), segments=self.segments)

    def pin_memory(self) -> Visibility:
        """The same in page-locked memory."""
        bounds = (self.key_start, self.key_end, self.query_start, self.query_end)
        return Visibility(*(bound.pin_memory() for bound in bounds), segments=self.segments)


def _check(segments: tuple[tuple[int, int, int], ...], length: int) -> None:
    expected = 0
    for number, (start, part_a, end) in enumerate(segments):
        if start != expected or not 0 <= part_a <= end - start or end == start:
            raise ValueError(
                f"segment {number} is (start {start}, part A {part_a}, end {end}); "
                f"it must start at {expected}, not be empty, and hold its part A"
            )
        expected = end
    if expected > length:
        raise ValueError(f"the segments end at {expected}, past the row of {length} tokens")

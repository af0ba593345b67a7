"""Rows of samples of one length, as the token objective makes them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from benchmarks.gpu.bench import Bench
from glm_kernels.attention import Visibility
from glm_kernels.dropout import RowKeys

PART_A = 459 / 560  # of a sample with 15 % masked in spans of three on average


@dataclass(frozen=True)
class SampleRow:
    """A row of equal samples, of one segment each."""

    length: int  # tokens of a sample
    samples: int
    visibility: Visibility
    row_keys: RowKeys

    @property
    def tokens(self) -> int:
        """Tokens of the row."""
        return self.length * self.samples

    def visible_pairs(self) -> int:
        """Pairs of a query and a key that it sees, in the row."""
        part_a = self.visibility.segments[0][1]
        part_b = self.length - part_a
        return self.samples * (part_a * part_a + part_b * part_a + part_b * (part_b + 1) // 2)

    def causal_pairs(self) -> int:
        """The same if every sample were causal."""
        return self.samples * self.length * (self.length + 1) // 2

    def by_sample(self, x: Tensor) -> Tensor:
        """[T, heads, d] -> [samples, heads, length, d], in memory of its own."""
        return x.unflatten(0, (self.samples, self.length)).transpose(1, 2).contiguous()


def sample_row(length: int, samples: int, bench: Bench) -> SampleRow:
    """A row of this many samples of this many tokens, on the device."""
    T, part_a = length * samples, round(PART_A * length)
    segments = [(start, part_a, start + length) for start in range(0, T, length)]
    return SampleRow(
        length,
        samples,
        Visibility.from_segments(segments, T).to(bench.device),
        RowKeys.from_lengths(range(samples), [length] * samples, T).to(bench.device),
    )

"""Which source each sample comes from: the weights kept at every moment, not only on average.

Drawing sources at random leaves a small source over- or under-fed by the root of its count; a table of
the whole run grows with it. Here the sequence repeats with a short period, within which the sources
are scheduled like periodic tasks on one processor: the j-th sample of a source with weight w may come
from floor((j − 1) / w) on and must have come before ceil(j / w), and the earliest deadline goes first.
That keeps every count within one of its due at every moment.

Source: Pfair scheduling (Baruah, Cohen, Plaxton and Varvel, 1996), for one processor.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from megatron_glm.errors import ConfigError

MAX_PERIOD = 1 << 16


class Blend:
    """A fixed interleaving of sources.

    After any n samples, each source's count differs from n × its weight by less than one.

    Args:
        weights: of the sources, positive, relative to each other; a float means the decimal that it
            prints as, so 0.1 is a tenth.
        field: where the sources stand in the configuration, for errors.

    Attributes:
        counts: samples of each source in a period, int64 [sources].
        period: samples after which the sequence repeats: the common denominator of the shares, at most 2**16.
        weights: the shares, exact fractions that sum to 1.

    Raises:
        ConfigError: a weight too small to get one sample in 2**16, or shares without a common denominator up to
            2**16, which would have to be rounded; the nearest that have one are named.
    """

    def __init__(self, weights: Sequence[float | Fraction], *, field: str = "data.sources"):
        shares = normalized(weights)
        period = math.lcm(*(share.denominator for share in shares))
        counts = _apportion(shares, min(period, MAX_PERIOD))
        for ordinal, count in enumerate(counts):
            if count == 0:
                raise ConfigError(
                    f"{field}[{ordinal}].weight: {weights[ordinal]} is a share of "
                    f"{float(shares[ordinal]):.3g}, too small for one sample in {MAX_PERIOD}; "
                    "raise it or leave the source out"
                )
        if period > MAX_PERIOD:
            raise ConfigError(
                f"{field}: the shares of these weights have no common denominator up to {MAX_PERIOD}, so they could "
                f"not be kept exactly; the nearest weights that can are {', '.join(map(str, counts))}"
            )
        self.period = period
        self.counts = np.array(counts, np.int64)
        self.weights = tuple(Fraction(count, period) for count in counts)
        self._source = _schedule(counts)
        self._before = _occurrences_before(self._source, len(counts))

    def __call__(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The source of each sample, and how many samples of that source came before it: int64 [k] each."""
        cycle, slot = np.divmod(np.asarray(index, np.int64), self.period)
        source = self._source[slot]
        return source, cycle * self.counts[source] + self._before[slot]

    def counts_before(self, index: int) -> np.ndarray:
        """How many of the samples 0 … index − 1 come from each source: int64 [sources]."""
        cycle, slot = divmod(index, self.period)
        return cycle * self.counts + np.bincount(self._source[:slot], minlength=len(self.counts))


def normalized(weights: Sequence[float | Fraction]) -> list[Fraction]:
    """The shares, which sum to 1; a float means the decimal that it prints as."""
    exact = [Fraction(str(weight)) for weight in weights]
    if not exact or min(exact) <= 0:
        raise ValueError(f"a blend needs positive weights, got {list(weights)}")
    return [weight / sum(exact) for weight in exact]


def _apportion(shares: Sequence[Fraction], total: int) -> list[int]:
    """Whole numbers that sum to `total` and differ from share × total by less than one (largest remainders)."""
    counts = [math.floor(share * total) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda k: counts[k] - shares[k] * total)
    for k in by_remainder[: total - sum(counts)]:
        counts[k] += 1
    return counts


def _schedule(counts: Sequence[int]) -> np.ndarray:
    """The source of each slot of a period, earliest deadline first: int64 [sum of counts]."""
    period = sum(counts)
    source = np.repeat(np.arange(len(counts)), counts)
    job = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
    count = np.asarray(counts, np.int64)[source]
    release = job * period // count
    deadline = -(-(job + 1) * period // count)
    by_release = np.argsort(release, kind="stable")
    jobs = list(zip(deadline[by_release].tolist(), source[by_release].tolist(), strict=True))
    released = np.searchsorted(release[by_release], np.arange(period), side="right").tolist()

    slots, ready, taken = [], [], 0
    for available in released:
        while taken < available:
            heapq.heappush(ready, jobs[taken])
            taken += 1
        slots.append(heapq.heappop(ready)[1])
    return np.array(slots, np.int64)


def _occurrences_before(source: np.ndarray, num_sources: int) -> np.ndarray:
    """How often each entry's value occurs before it: int64 [period] -> int64 [period]."""
    by_source = np.argsort(source, kind="stable")
    first = np.cumsum(np.bincount(source, minlength=num_sources)) - np.bincount(source, minlength=num_sources)
    before = np.empty(len(source), np.int64)
    before[by_source] = np.arange(len(source)) - first[source[by_source]]
    return before

"""Which layers each stage of a pipeline has: consecutive ones, so that the slowest stage is as fast as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise


def balanced_stages(costs: Sequence[float], stages: int) -> tuple[range, ...]:
    """Divide consecutive layers over stages, at least one a stage, so that the largest sum of costs is least.

    Among equally good divisions it is the one with the least sum of squares: the others are as even as can be.

    Args:
        costs: of each layer, in any unit; what a first or last layer brings with it is in its cost.
        stages: 1 <= stages <= number of layers.
    """
    assert 1 <= stages <= len(costs), f"{len(costs)} layers cannot be {stages} stages"
    sums = [0.0, *accumulate(costs)]

    def cost(start: int, stop: int) -> float:
        return sums[stop] - sums[start]

    limit, _ = _best(len(costs), stages, cost, max)

    def square(start: int, stop: int) -> float:
        return cost(start, stop) ** 2 if cost(start, stop) <= limit else math.inf

    _, bounds = _best(len(costs), stages, square, lambda before, last: before + last)
    return tuple(range(start, stop) for start, stop in pairwise(bounds))


def _best(
    layers: int, stages: int, cost: Callable[[int, int], float], join: Callable[[float, float], float]
) -> tuple[float, tuple[int, ...]]:
    """The division whose stages' costs, joined, are least: that value, and where stages begin and end."""

    @cache
    def best(stop: int, stages: int) -> tuple[float, tuple[int, ...]]:
        if stages == 1:
            return cost(0, stop), (0, stop)
        divisions = []
        for start in range(stages - 1, stop):
            before, bounds = best(start, stages - 1)
            divisions.append((join(before, cost(start, stop)), (*bounds, stop)))
        return min(divisions)

    return best(layers, stages)

"""Whether the loss of a step is far above those of the steps before it.

A batch has more of one objective than the next, and each objective has a level of its own. So a step is compared with
the median of each objective's mean loss, mixed as this step mixes them, and its distance is measured by the median of
the same distances of the steps before (the MAD), which one outlier does not move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_NORMAL = 1.4826  # of a normal distribution, standard deviation / MAD
_LEAST_DEVIATION = 1e-3  # of the loss: where steps are more alike than this, no difference means anything


@dataclass(frozen=True)
class StepLoss:
    """The exact loss of a step, as all ranks know it.

    Attributes:
        loss: in nats.
        sums: summed nll by objective.
        targets: target tokens by objective.
        weights: of one target token, by objective.
    """

    loss: float
    sums: Sequence[float]
    targets: Sequence[int]
    weights: Sequence[float]

    def row(self) -> list[float | None]:
        """By objective: mean loss, None where it has no target; then its share in the step's loss."""
        means = [s / n if n else None for s, n in zip(self.sums, self.targets, strict=True)]
        return [*means, *(weight * n for weight, n in zip(self.weights, self.targets, strict=True))]


@dataclass(frozen=True)
class Spike:
    """Attributes: what the steps before lead to expect, and the distance in their typical distances."""

    expected: float
    deviations: float


class SpikeDetector:
    """Compares each step with the last ones.

    Args:
        window: steps that are remembered; with fewer than half of them nothing is a spike.
        factor: typical distances above which a step is one.
    """

    def __init__(self, window: int, factor: float):
        self._rows: deque[list[float | None]] = deque(maxlen=window)
        self._least = max(2, window // 2)
        self._factor = factor

    def find(self, step: StepLoss) -> Spike | None:
        """Compare a step; it is not remembered."""
        if len(self._rows) < self._least:
            return None
        rows = np.array([*self._rows, step.row()], np.float64)  # None becomes NaN
        means, shares = np.split(rows, 2, axis=1)
        known = ~np.isnan(means[:-1]).all(axis=0)
        if (shares[-1, ~known] > 0).any():
            return None  # an objective that has not been there before
        levels = np.zeros(means.shape[1])
        levels[known] = np.nanmedian(means[:-1, known], axis=0)
        excess = (shares * np.where(shares > 0, means - levels, 0.0)).sum(axis=1)
        expected = float(shares[-1] @ levels)
        typical = max(_NORMAL * float(np.median(np.abs(excess[:-1]))), _LEAST_DEVIATION * expected)
        deviations = float(excess[-1]) / typical if typical else 0.0
        return Spike(expected, deviations) if deviations > self._factor else None

    def add(self, step: StepLoss) -> None:
        """Remember a step."""
        self._rows.append(step.row())

    def forget(self) -> None:
        """Begin anew: what comes is not comparable."""
        self._rows.clear()

    def state(self) -> list[list[float | None]]:
        """What JSON can hold, and gives back bit for bit."""
        return [list(row) for row in self._rows]

    def load(self, state: Sequence[Sequence[float | None]]) -> None:
        """Go on from a state."""
        self._rows.clear()
        self._rows.extend(list(row) for row in state)

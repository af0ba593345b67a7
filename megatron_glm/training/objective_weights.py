"""The exact loss: what each target token of a step weighs.

The mean is taken over the targets of the whole global batch, so the weights follow from the global
counts alone. A partition of the batch over ranks and micro-batches only regroups the sum
Σ weight · nll, and the gradients are those of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal


def objective_weights(
    counts: Sequence[int],
    probabilities: Sequence[float],
    normalization: Literal["per_objective", "per_token"],
) -> tuple[float, ...]:
    """The weight of one target token of each objective.

    Args:
        counts: target tokens of each objective in the global batch.
        probabilities: of each objective in the mixture; targets of one with 0 weigh nothing.
        normalization: `per_objective`: Σ over objectives of probability × mean over its targets, the
            probabilities renormalised over the objectives that occur; `per_token`: one mean over all targets.

    A batch without targets weighs nothing: its step has a zero gradient.
    """
    if normalization == "per_token":
        total = sum(counts)
        return tuple(1.0 / total if count else 0.0 for count in counts)
    present = sum(p for p, count in zip(probabilities, counts, strict=True) if count)
    return tuple(p / present / count if p and count else 0.0 for p, count in zip(probabilities, counts, strict=True))


def combine(sums: Sequence[float], weights: Sequence[float]) -> float:
    """The loss of a batch from its summed nll by objective, in nats."""
    return sum(s * w for s, w in zip(sums, weights, strict=True))

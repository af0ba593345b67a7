"""Losses over the whole global batch from what each replica saw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_glm.data.batch import Batch
from megatron_glm.objective.sample import Objective


@dataclass(frozen=True)
class Counts:
    """Target tokens of each objective, tokens without padding, and tokens that the span limits left unmasked."""

    targets: tuple[int, ...] = (0,) * len(Objective)
    tokens: int = 0
    yielded: int = 0

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> Counts:
        """The counts of this replica's batches."""
        return sum((cls(batch.target_counts, batch.num_tokens, batch.yielded) for batch in batches), cls())

    def __add__(self, other: Counts) -> Counts:
        targets = tuple(a + b for a, b in zip(self.targets, other.targets, strict=True))
        return Counts(targets, self.tokens + other.tokens, self.yielded + other.yielded)

    def over_replicas(self, device: torch.device, group: dist.ProcessGroup | None, *, copies: int = 1) -> Counts:
        """The counts of all replicas, with as many ranks of each in `group`: one all-reduce of integers.

        Args:
            group: None: all processes.
            copies: the ranks of a replica, which all have its counts.
        """
        return self.with_totals((), device, group, copies=copies)[0]

    def with_totals(
        self, numbers: Sequence[int], device: torch.device, group: dist.ProcessGroup | None, *, copies: int
    ) -> tuple[Counts, list[int]]:
        """The same, and in the same all-reduce the sums of other numbers over all ranks of the group."""
        mine = (*self.targets, self.tokens, self.yielded)
        total = torch.tensor((*mine, *numbers), dtype=torch.int64, device=device)
        dist.all_reduce(total, group=group)
        sums = total.tolist()
        *targets, tokens, yielded = (count // copies for count in sums[: len(mine)])
        return Counts(tuple(targets), tokens, yielded), sums[len(mine) :]


def summing_weights(weights: Sequence[float], parts: int, device: torch.device) -> Tensor:
    """The weight of a target token by objective, fp32 [3], under which DeepSpeed's gradients are those of the sum.

    DeepSpeed divides by the accumulation and averages over replicas; the exact loss is a plain sum.

    Args:
        parts: replicas × accumulation.
    """
    return torch.tensor(weights, dtype=torch.float32, device=device) * float(parts)


def sums_over_replicas(sums: Tensor, group: dist.ProcessGroup | None, *, copies: int = 1) -> tuple[float, ...]:
    """Summed nll by objective over all replicas: fp64 [3] of each -> three numbers, equal on all.

    Args:
        group: with as many ranks of each replica; None: all processes.
        copies: the ranks of a replica in it, which all have its sums.
    """
    total = sums.clone()
    dist.all_reduce(total, group=group)
    return tuple((total / copies).tolist())


@dataclass
class LossAverage:
    """Losses over several steps: the mean of the steps' losses, and exact means by objective."""

    steps: int = 0
    loss: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0] * len(Objective))
    targets: list[int] = field(default_factory=lambda: [0] * len(Objective))

    def add(self, loss: float, sums: Sequence[float], targets: Sequence[int]) -> None:
        self.steps += 1
        self.loss += loss
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.targets = [a + b for a, b in zip(self.targets, targets, strict=True)]

    @property
    def mean_loss(self) -> float:
        return self.loss / self.steps if self.steps else math.nan

    def by_objective(self) -> dict[str, float]:
        """Mean nll of a target token in nats, for each objective that occurred."""
        return mean_by_objective(self.sums, self.targets)


def mean_by_objective(sums: Sequence[float], targets: Sequence[int]) -> dict[str, float]:
    """Mean nll of a target token in nats, for each objective that has targets."""
    return {o.name.lower(): sums[o] / targets[o] for o in Objective if targets[o]}

"""What all ranks do at the same step, though only some of them know why.

A signal reaches one rank, rank 0 alone reads files. The all-reduce of the exact loss's counts, at the start of each
step, carries two numbers more: how many ranks wish to stop, and whether rank 0 has news. So nothing is waited for
that a step would not wait for, and a rank that hears of a stop has not begun the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from megatron_glm.parallel.ranks import Ranks
from megatron_glm.training.control.stopping import StopWished
from megatron_glm.training.engines.exact_loss import Counts, sums_over_replicas

T = TypeVar("T")


class Agreement:
    """Every rank calls each method at the same time.

    Args:
        copies: ranks of a replica: each counts the replica's targets.
        wish: why this rank would stop after the last step, if it would.
        news: what rank 0 has to tell all ranks, if anything (what JSON can hold).
        adopt: takes the news on every rank, at the same step.
        reached: called when all have met.
    """

    def __init__(
        self,
        ranks: Ranks,
        *,
        device: torch.device,
        copies: int,
        wish: Callable[[], str | None],
        news: Callable[[], Any],
        adopt: Callable[[Any], None],
        reached: Callable[[], None],
    ):
        self._ranks = ranks
        self._device = device
        self._copies = copies
        self._wish = wish
        self._news = news
        self._adopt = adopt
        self._reached = reached

    def start_step(self, counts: Counts) -> Counts:
        """The counts of all replicas, from those of this one. Raises StopWished."""
        news = self._news()
        total, with_news = self._meet(counts, news is not None)
        if with_news:
            self._adopt(self._ranks.gather(news)[0])
        return total

    def step_sums(self, sums: Tensor) -> tuple[float, ...]:
        """Summed nll by objective of all replicas, from that of this one: the same bits on all ranks.

        What follows from it (mishaps.py) must be the same too, also where a rank's copy of a replica is at fault.
        """
        return sums_over_replicas(sums, None, copies=self._copies)

    def look(self) -> None:
        """Between the batches of a validation, which has no all-reduce of its own. Raises StopWished."""
        self._meet(Counts(), False)

    def between(self, batches: Iterable[T]) -> Iterator[T]:
        """The same batches; looks before each of them."""
        for batch in batches:
            self.look()
            yield batch

    def _meet(self, counts: Counts, has_news: bool) -> tuple[Counts, int]:
        """The counts of all replicas, and how many ranks have news."""
        wish = self._wish()
        numbers = (int(wish is not None), int(has_news))
        total, (stops, news) = counts.with_totals(numbers, self._device, None, copies=self._copies)
        self._reached()
        if stops:
            raise StopWished(next(told for told in self._ranks.gather(wish) if told))
        return total, news

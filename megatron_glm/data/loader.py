"""From the order of samples to the micro-batches of one replica, prepared ahead by a thread.

The whole state of the data is the next sample's global index and the list of what is left out: a step is made from
these alone, so any step can be prepared before its turn, or again after a resume.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from megatron_glm.config.batching import BatchSizes
from megatron_glm.data.batch import Batch
from megatron_glm.data.replica_share import step_end, step_indices
from megatron_glm.data.skip_list import SkipList
from megatron_glm.objective.sample import Objective, Sample

Collate = Callable[[Sequence[Sample]], Batch]


class Samples(Protocol):
    """What a loader reads: `dataset.SampleDataset`."""

    def samples(self, indices: np.ndarray) -> list[Sample]: ...


class HeldOut(Protocol):
    """What an evaluation reads: `dataset.HeldOutDataset`."""

    num_windows: int

    def sample(self, objective: Objective, window: int) -> Sample: ...


@dataclass(frozen=True)
class Step:
    """A replica's share of one optimizer step.

    Attributes:
        first_sample: global index of the step's first sample, over all replicas.
        micro_batches: in the order in which they are accumulated.
        target_counts: targets of each objective in this share.
    """

    first_sample: int
    micro_batches: tuple[Batch, ...]
    target_counts: tuple[int, int, int]

    @classmethod
    def of(cls, first_sample: int, batches: Sequence[Batch], *, pin_memory: bool) -> Self:
        """A step of these micro-batches, in page-locked memory if wanted."""
        counts = np.sum([batch.target_counts for batch in batches], axis=0)
        batches = tuple(batch.pin_memory() if pin_memory else batch for batch in batches)
        return cls(first_sample, batches, tuple(counts.tolist()))


class Loader(ABC):
    """An endless iterator over the steps of one replica; use it in a `with` block, or call `close`.

    An error while a step is prepared is raised, as it was, where the step is asked for.

    Attributes:
        wait_seconds: how long the consumer has waited for data so far.
    """

    def __init__(self) -> None:
        self.wait_seconds = 0.0

    @abstractmethod
    def close(self) -> None:
        """Stop preparing and leave nothing behind; may be called again."""

    @abstractmethod
    def _next(self) -> Step:
        """The next step in order; after an error the same one again: no step is ever left out."""

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        started = time.perf_counter()
        try:
            return self._next()
        finally:
            self.wait_seconds += time.perf_counter() - started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StepLoader(Loader):
    """A loader in this process.

    Args:
        dataset: gives the samples.
        collate: makes a batch of samples: `batch.collate` with its options bound.
        consumed_samples: global samples consumed or left out before: 0, or any number after a resume.
        skips: samples that are left out.
        global_batch_size: samples of each step, or what they are in the course of the run.
        prefetch: steps prepared ahead by a thread; 0 prepares each when it is asked for.
        pin_memory: put batches into page-locked memory, for a GPU.
    """

    def __init__(
        self,
        dataset: Samples,
        collate: Collate,
        *,
        consumed_samples: int,
        global_batch_size: int | BatchSizes,
        micro_batch_size: int,
        dp_rank: int,
        dp_size: int,
        prefetch: int,
        skips: SkipList | None = None,
        pin_memory: bool = False,
    ):
        super().__init__()
        self._skips = skips or SkipList()
        self._dataset = dataset
        self._collate = collate
        self._next_sample = consumed_samples  # of the next step to be prepared
        self._sizes = (
            BatchSizes.constant(global_batch_size) if isinstance(global_batch_size, int) else global_batch_size
        )
        self._layout = (dp_rank, dp_size, micro_batch_size)
        self._indices(consumed_samples)  # a layout that does not divide is refused at once
        self._prefetch = prefetch
        self._pin_memory = pin_memory
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="data") if prefetch else None
        self._pending: deque[Future[Step]] = deque()
        self._prepare_ahead()

    def close(self) -> None:
        if self._executor:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def _next(self) -> Step:
        if self._executor is None:
            step = self._prepare(self._next_sample)
            self._pass_step()
            return step
        step = self._pending[0].result()  # stays in its place if it failed: no step is ever left out
        self._pending.popleft()
        self._prepare_ahead()
        return step

    def _prepare_ahead(self) -> None:
        while len(self._pending) < self._prefetch:
            self._pending.append(self._executor.submit(self._prepare, self._next_sample))
            self._pass_step()

    def _pass_step(self) -> None:
        self._next_sample = step_end(self._next_sample, self._sizes, self._skips)

    def _prepare(self, first_sample: int) -> Step:
        indices = self._indices(first_sample)
        samples = self._dataset.samples(indices.ravel())
        size = indices.shape[1]
        batches = tuple(self._collate(samples[i : i + size]) for i in range(0, len(samples), size))
        return Step.of(first_sample, batches, pin_memory=self._pin_memory)

    def _indices(self, first_sample: int) -> np.ndarray:
        return step_indices(first_sample, self._sizes.at(first_sample), *self._layout, self._skips)


def evaluation_batches(
    held_out: HeldOut,
    objective: Objective,
    collate: Collate,
    *,
    dp_rank: int,
    dp_size: int,
    micro_batch_size: int,
) -> Iterator[Batch]:
    """A replica's share of the held-out windows under one objective.

    The replicas together have each window once, in equally many micro-batches each, since a forward pass may
    be a collective: the last ones may be short or hold no sample at all.
    """
    together = dp_size * micro_batch_size
    for first in range(0, held_out.num_windows, together):
        begin = first + dp_rank * micro_batch_size
        windows = range(begin, min(begin + micro_batch_size, held_out.num_windows))
        yield collate([held_out.sample(objective, window) for window in windows])

"""The steps of one replica: from where the run stands, and once more from where it goes back to."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

from megatron_glm.config.batching import BatchSizes
from megatron_glm.data.loader import Loader, StepLoader
from megatron_glm.data.process_loader import ProcessLoader
from megatron_glm.parallel.together import agreed
from megatron_glm.training.fault_points import FaultPoints
from megatron_glm.training.prepared_run import PreparedRun


class Loaders:
    """One loader at a time; a context that closes the last. Every rank opens its own together with the others.

    Args:
        faults: what a test has planted.
    """

    def __init__(self, run: PreparedRun, faults: FaultPoints):
        self._run = run
        self._faults = faults
        self._held = ExitStack()

    def open(self) -> Loader:
        """The steps from the run's progress on. Raises ConfigError where workers cannot be started; on all ranks."""
        self._held.close()  # the one before, which is elsewhere
        ranks = self._run.ranks
        loader = self._held.enter_context(agreed(ranks, lambda: _loader(self._run)))
        agreed(ranks, lambda: self._faults.plant_in_loader(loader))
        return loader

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()


def _loader(run: PreparedRun) -> Loader:
    config, inputs, progress = run.config, run.inputs, run.beginning.progress
    place = {
        "consumed_samples": progress.samples,
        "dp_rank": run.groups.place.data,
        "dp_size": run.groups.layout.data,
        "skips": progress.skips,
        "pin_memory": run.engine.device.type == "cuda",
    }
    if config.data.workers:
        return ProcessLoader(config, inputs.row_options, lengths=inputs.samples.lengths, **place)
    return StepLoader(
        inputs.samples,
        inputs.collate,
        global_batch_size=BatchSizes.of(config.train),
        micro_batch_size=config.train.micro_batch_size,
        prefetch=config.data.prefetch,
        **place,
    )

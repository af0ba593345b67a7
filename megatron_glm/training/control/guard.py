"""What watches over a run while the trainer trains: stops, hangs, slow ranks, settings changed under way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megatron_glm.command import EXIT_NO_PROGRESS
from megatron_glm.config.schema import Config
from megatron_glm.parallel.layout import Layout
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.training.control.agreement import Agreement
from megatron_glm.training.control.overrides import OverridesFile
from megatron_glm.training.control.signals import StopSignals
from megatron_glm.training.control.steering import Steering
from megatron_glm.training.control.stopping import Wishes
from megatron_glm.training.guards.stragglers import BusyClock, compare, here
from megatron_glm.training.guards.watchdog import STACKS, Watchdog
from megatron_glm.training.launcher_watch import LauncherWatch
from megatron_glm.training.progress import Progress


@dataclass
class Watch:
    """What watches a process from its start on, before there is anything to train."""

    signals: StopSignals
    watchdog: Watchdog
    launcher: LauncherWatch
    clock: BusyClock
    started: float  # time.monotonic()


@contextmanager
def watched(config: Config, *, rank: int, started: float) -> Iterator[Watch]:
    """Take signals and watch this process while the block runs."""
    directory = Path(config.train.output) / STACKS
    dog = Watchdog(config.train.watchdog_seconds, rank=rank, directory=directory, exit_code=EXIT_NO_PROGRESS)
    launcher = LauncherWatch(os.environ)
    with StopSignals() as signals, dog, BusyClock() as clock:
        yield Watch(signals, dog, launcher, clock, started)


class Guard:
    """The trainer's side of it.

    Args:
        progress: that of the trainer, which changes.
        record: takes each metrics record, on every rank.

    Attributes:
        agreement: where all ranks agree to stop.
        steering: the learning rate of each step.
        watchdog: is told of progress.
    """

    def __init__(
        self,
        config: Config,
        ranks: Ranks,
        watch: Watch,
        *,
        layout: Layout,
        device: torch.device,
        steering: Steering,
        progress: Progress,
        record: Callable[[dict], None],
    ):
        self._ranks = ranks
        self._clock = watch.clock
        self._clock.take()  # what came before has nothing to do with steps
        self._factor = config.train.straggler_factor
        self._write = record
        self._progress = progress
        self.steering = steering
        self.watchdog = watch.watchdog
        wishes = Wishes(
            config,
            rank=ranks.rank,
            signals=watch.signals,
            launcher=watch.launcher,
            first_step=progress.step,
            started=watch.started,
        )
        file = OverridesFile(
            Path(config.train.output),
            held=steering.overrides,
            refused=lambda line: self._record("warning", text=line),
        )
        self.agreement = Agreement(
            ranks,
            device=device,
            copies=layout.tensor * layout.pipeline,
            wish=lambda: wishes.reason(progress.step),
            news=file.news if ranks.rank == 0 else lambda: None,
            adopt=self._adopt,
            reached=self.watchdog.mark,
        )

    @contextmanager
    def patient(self, doing: str) -> Iterator[None]:
        """A block that is no step: it may take longer, and tells nothing of how fast a rank is."""
        with self.watchdog.patient(doing), self._clock.paused():
            yield

    def report_stragglers(self, steps: int) -> None:
        """At the end of an interval of so many steps; called by all ranks."""
        found = compare(self._ranks.gather(here(self._clock)), steps=steps, factor=self._factor)
        if found:
            self._record("straggler", **found)

    def _adopt(self, overrides: Mapping[str, Any]) -> None:
        self.steering.adopt(overrides)
        self._record("override", **overrides)

    def _record(self, kind: str, **what: Any) -> None:
        self._write({"kind": kind, **self._progress.position(), **what})

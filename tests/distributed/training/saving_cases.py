"""What the processes of the tests of saving do: train, save in the background, on good disks and on bad ones."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megatron_glm.checkpoint.discovery import published
from megatron_glm.config import schema
from megatron_glm.config.schema import Config
from megatron_glm.errors import CheckpointError
from megatron_glm.files import Files
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import DistributedRanks
from megatron_glm.training.checkpoints.saving import Saver
from megatron_glm.training.progress import Progress
from tests.distributed.training import cases


class Slow(Files):
    """Each flush takes a while."""

    def __init__(self, seconds: float):
        self._seconds = seconds

    def sync(self, stream):
        time.sleep(self._seconds)
        super().sync(stream)


class Full(Slow):
    """Slow, and without room from a given write on."""

    def __init__(self, seconds: float, writes: int):
        super().__init__(seconds)
        self._left = writes

    def write(self, stream, data):
        if self._left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._left -= 1
        super().write(stream, data)


def files_of(disk: str, rank: int) -> Files:
    seconds = {"fast": 0.0, "slow": 0.15, "rank 1 slow": 0.8 * rank}.get(disk, 0.1)
    if disk == f"rank {rank} full":
        # Rank 1 writes one file; rank 0 its own and then the descriptions.
        return Full(seconds, writes=0 if rank == 1 else 3)
    return Slow(seconds)


@dataclass(frozen=True)
class Job:
    """A layout and what happens while it trains and saves.

    Attributes:
        pause: seconds of each step beside computing.
        interrupted: whether training fails at step 3.
    """

    options: dict[str, int]
    disk: str = "fast"
    background: bool = True
    pause: float = 0.0
    interrupted: bool = False

    def config(self) -> Config:
        return cases.config(micro=2, **self.options)


class InterruptionError(Exception):
    """Something in training that has nothing to do with saving."""


class Jobs:
    """Runs one job after another, each with the engine that it is given."""

    def __init__(self, directory: Path, jobs: dict[str, Job]):
        self._directory, self._jobs = directory, list(jobs.items())

    def __call__(self, settings: Config, engine: cases.Engine, groups: Groups) -> dict[str, Any]:
        name, job = self._jobs.pop(0)
        return train(self._directory / name, job, settings, engine, groups)


def train(directory: Path, job: Job, settings: Config, engine: cases.Engine, groups: Groups) -> dict[str, Any]:
    """Save at steps 2 and 8 of 8; what was recorded, what became visible when, and how it ended."""
    ranks, progress = DistributedRanks(), Progress()
    found: dict[str, Any] = {"records": [], "visible": [], "loss": [], "error": "", "failed at": None}
    saver = Saver(
        schema.Checkpoint(background=job.background),
        engine,
        directory=directory,
        run_id="test",
        state=lambda progress: {"progress": asdict(progress)},
        attachments={},
        ranks=ranks,
        report=found["records"].append,
        files=files_of(job.disk, ranks.rank),
    )
    try:
        with saver:
            for step in range(8):
                found["loss"].append(cases.one_step(settings, engine, groups, step)[0])
                time.sleep(job.pause)
                progress.step += 1
                if progress.step in (2, 8):
                    saver.save(progress)
                saver.step_end()
                found["visible"].append(sorted(published(directory)))
                if job.interrupted and progress.step == 3:
                    raise InterruptionError
            saver.finish()
    except InterruptionError:
        found["error"] = "interrupted"
    except CheckpointError as error:
        found["error"], found["failed at"] = str(error), progress.step
    ranks.barrier()
    found["left"] = sorted(path.name for path in directory.iterdir())
    return found

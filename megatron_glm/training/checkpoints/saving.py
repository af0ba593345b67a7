"""When and how a run's checkpoints are written: at once, or in the background while training goes on.

In the background, training stops only while each rank copies what it saves to the host's memory; a thread then writes
and publishes the copy. The ranks' threads agree through a process group of their own, so their messages never meet
those of training. Whether all threads are done is asked at step ends, while there is something to ask for: all ranks
hear of success or failure at the same step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from megatron_glm.checkpoint.format import Fragment
from megatron_glm.checkpoint.retention import Retention, remove_expendable
from megatron_glm.checkpoint.snapshot import Snapshot
from megatron_glm.checkpoint.writing import save_checkpoint
from megatron_glm.config import schema
from megatron_glm.files import Files
from megatron_glm.parallel.ranks import DistributedRanks, Ranks, SingleProcess
from megatron_glm.parallel.together import together
from megatron_glm.training.engines.stateful_engine import StatefulEngine
from megatron_glm.training.progress import Progress

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Saved:
    """One save that went well: what came of it, and how long it took to write, in seconds."""

    position: Mapping[str, int]
    path: Path
    removed: tuple[Path, ...]
    seconds: float


class Saver:
    """Saves the checkpoints of a run; every rank calls each method together with the others.

    As a context it waits for the last one to be written, however the block ends.

    Args:
        directory: of the checkpoints, one that all ranks share.
        state: what a resume needs beside the engine's values; anything JSON can hold.
        attachments: further files of each checkpoint.
        ranks: all processes of the job.
        report: takes the record of each checkpoint once it is published.
    """

    def __init__(
        self,
        settings: schema.Checkpoint,
        engine: StatefulEngine,
        *,
        directory: Path,
        run_id: str,
        state: Callable[[Progress], Mapping[str, Any]],
        attachments: Mapping[str, bytes],
        ranks: Ranks,
        report: Callable[[dict[str, Any]], None],
        files: Files | None = None,
    ):
        self._engine = engine
        self._directory = directory
        self._run_id = run_id
        self._state = state
        self._retention = Retention(settings.keep_last, settings.keep_every)
        self._attachments = attachments
        self._ranks = ranks
        self._report = report
        self._files = files or Files()
        self._background = settings.background
        self._snapshot = Snapshot()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writers = _group_of_writers(ranks) if settings.background else ranks
        self._pending: Future[_Saved] | None = None
        self._stall = 0.0

    def save(self, progress: Progress) -> None:
        """Save what the engine holds now; waits for the save before this one.

        Raises:
            CheckpointError: this save or the one before has failed; on all ranks.
        """
        self.finish()
        started = time.perf_counter()
        position, state = progress.position(), self._state(progress)
        if not self._background:
            self._tell(self._write(position, self._engine.fragments(), state), time.perf_counter() - started)
            return
        fragments: list[Fragment] = []
        together(
            self._ranks,
            f"{self._directory}: step {position['step']} not saved",
            lambda: fragments.extend(self._snapshot.take(self._engine.fragments())),
        )
        self._pending = self._thread.submit(self._write, position, fragments, state)
        self._stall = time.perf_counter() - started

    def step_end(self) -> None:
        """Between two steps: hear of a save that has ended on all ranks. Raises CheckpointError, on all ranks."""
        if self._pending and all(self._ranks.gather(self._pending.done())):
            self.finish()

    def finish(self) -> None:
        """Wait for the save that is under way, if any. Raises CheckpointError, on all ranks, if it has failed."""
        if self._pending:
            pending, self._pending = self._pending, None
            started = time.perf_counter()
            saved = pending.result()
            self._tell(saved, self._stall + time.perf_counter() - started)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.finish()
        except Exception as failure:
            if error is None:
                raise
            _log.warning("%s", failure)  # must not hide the error that the run ends with
        finally:
            self._thread.shutdown()

    def _tell(self, saved: _Saved, stall: float) -> None:
        self._report(
            {
                "kind": "save",
                **saved.position,
                "path": str(saved.path),
                "removed": [str(path) for path in saved.removed],
                "seconds": saved.seconds,
                "stall_seconds": stall,
            }
        )

    def _write(self, position: Mapping[str, int], fragments: Iterable[Fragment], state: Mapping[str, Any]) -> _Saved:
        started = time.perf_counter()
        path = save_checkpoint(
            self._directory,
            run_id=self._run_id,
            step=position["step"],
            fragments=fragments,
            shapes=self._engine.shapes,
            state=state,
            ranks=self._writers,
            attachments=self._attachments,
            files=self._files,
        )
        removed: tuple[Path, ...] = ()
        if self._ranks.rank == 0:
            removed = remove_expendable(
                self._directory, run_id=self._run_id, retention=self._retention, files=self._files
            )
        return _Saved(position, path, removed, time.perf_counter() - started)


def _group_of_writers(ranks: Ranks) -> Ranks:
    """A way to agree that the threads have for themselves; gloo, as they have nothing to do with GPUs."""
    return DistributedRanks(dist.new_group(backend="gloo")) if ranks.size > 1 else SingleProcess()

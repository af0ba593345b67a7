"""Going back to the last checkpoint within a run, when the steps since then have spoilt the weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron_glm.checkpoint.discovery import scan_checkpoints
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.data.skip_list import SkipList
from megatron_glm.files import Files
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.parallel.together import agreed, together
from megatron_glm.training.checkpoints.rewind_file import RewindRecord, forget_rewind, keep_rewind
from megatron_glm.training.checkpoints.starting import take_up
from megatron_glm.training.control.steering import Steering
from megatron_glm.training.engines.engine import Engine
from megatron_glm.training.guards.divergence import RewindWished
from megatron_glm.training.guards.mishaps import Mishaps
from megatron_glm.training.progress import Progress


class Rewinder:
    """Every rank calls it together with the others, while no save is under way.

    Args:
        output: of the run; what is decided is kept there until a checkpoint holds it.
        directory: of the run's checkpoints.
        progress: that of the trainer, which changes.
        forget: is told the step of the checkpoint and its newest validation; what came later was never so.
        record: takes each metrics record, on every rank.
    """

    def __init__(
        self,
        engine: Engine,
        mishaps: Mishaps,
        steering: Steering,
        *,
        output: Path,
        directory: Path,
        run_id: str,
        groups: Groups,
        ranks: Ranks,
        progress: Progress,
        forget: Callable[[int, dict | None], None],
        record: Callable[[dict[str, Any]], None],
        files: Files | None = None,
    ):
        self._engine = engine
        self._mishaps = mishaps
        self._steering = steering
        self._output = output
        self._directory = directory
        self._run_id = run_id
        self._groups = groups
        self._ranks = ranks
        self._progress = progress
        self._forget = forget
        self._record = record
        self._files = files or Files()

    def __call__(self, wish: RewindWished) -> bool:
        """Take up weights, moments and place in the data again, and leave the samples out: whether that could be.

        Raises:
            CheckpointError: the checkpoints cannot be read, or what was loaded is not what was saved; on all ranks.
        UserError: another rank cannot read the one that was found.
        """
        what = f"step {self._progress.step}: no way back"
        leads = self._ranks.rank == 0
        found, damaged = together(self._ranks, what, lambda: self._newest() if leads else None)[0]
        # Each machine reads for itself, and nothing has changed yet where one cannot.
        checkpoint = found and agreed(self._ranks, lambda: CheckpointReader(Path(found), verify=False))
        if checkpoint is None or checkpoint.run_id != self._run_id:
            self._warn(*damaged, f"no checkpoint of this run in {self._directory} to go back to; the step is skipped")
            return False
        left, saved = self._progress.step, Progress(**checkpoint.state["progress"])
        skipped, skips = self._left_out(saved, wish)
        together(self._ranks, what, lambda: self._keep(saved, skips) if leads else None)
        take_up(checkpoint, self._engine, groups=self._groups, ranks=self._ranks)
        self._progress.become(saved, skip_samples=skips.ranges)
        self._mishaps.go_back(checkpoint.state["mishaps"])
        self._steering.go_back(checkpoint.state["steering"], first_step=saved.step)
        self._forget(saved.step, checkpoint.state["validation"])
        self._warn(*damaged)
        told = {"from_step": left, "path": found, "ranges": [list(skipped)]}
        self._record({"kind": "rewind", **self._progress.position(), **told})
        return True

    def saved(self) -> None:
        """A checkpoint has been published: it holds what was decided before."""
        if self._ranks.rank == 0:
            forget_rewind(self._output, self._files)

    def _keep(self, saved: Progress, skips: SkipList) -> None:
        """Before anything changes: from now on the next start does what this one would have done."""
        record = RewindRecord(
            run_id=self._run_id,
            step=saved.step,
            rewinds=self._mishaps.rewinds + 1,
            skip_samples=[list(part) for part in skips.ranges],
        )
        keep_rewind(self._output, record, self._files)

    def _left_out(self, saved: Progress, wish: RewindWished) -> tuple[tuple[int, int], SkipList]:
        """The samples that are to be left out now, and all."""
        skipped = (max(saved.samples, wish.end - wish.samples), wish.end)
        return skipped, SkipList.of([*self._progress.skip_samples, *saved.skip_samples, skipped])

    def _newest(self) -> tuple[str | None, list[str]]:
        """The newest whole checkpoint, and what to say about newer ones."""
        scan = scan_checkpoints(self._directory, hashes=True)
        damaged = [f"passed over {rejected.path}: {rejected.reason}" for rejected in scan.rejected]
        return scan.newest and str(scan.newest), damaged

    def _warn(self, *texts: str) -> None:
        for text in texts:
            self._record({"kind": "warning", **self._progress.position(), "text": text})

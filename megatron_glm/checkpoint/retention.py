"""Which checkpoints a run keeps, and how the others go.

One that goes is first renamed, so that at any moment a checkpoint is whole or not there: a start after a crash never
meets one that is half deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from megatron_glm.checkpoint.discovery import deleted_name, published
from megatron_glm.checkpoint.manifest import verify_checkpoint
from megatron_glm.errors import CheckpointError
from megatron_glm.files import Files

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retention:
    """What is kept.

    Attributes:
        last: so many of the newest, at least 2: the newest may turn out to be damaged. None: all.
        every: and those whose step is a multiple of it.
    """

    last: int | None = None
    every: int | None = None

    def expendable(self, steps: Iterable[int]) -> list[int]:
        """Those of the steps that need not be kept, oldest first."""
        ordered = sorted(steps)
        if self.last is None:
            return []
        return [step for step in ordered[: -self.last] if not (self.every and step % self.every == 0)]


def remove_expendable(
    directory: Path, *, run_id: str, retention: Retention, files: Files | None = None
) -> tuple[Path, ...]:
    """Delete the checkpoints of a run that need not be kept; one process of the run calls it, after a save.

    Another run's checkpoints, and directories that are no whole checkpoint, are left alone. Before anything goes, the
    newest one is read and its hashes are compared; if it is damaged, the newest that proves whole stays whatever its
    step. What cannot be deleted is warned of and tried again after the next save.

    Returns the checkpoints that are gone.
    """
    files = files or Files()
    try:
        own = {step: path for step, path in published(directory).items() if _is_of_run(path, step, run_id)}
    except OSError as error:  # the other ranks have their checkpoint, and wait for no error of this one
        _log.warning("%s: cannot be read (%s); nothing is deleted", directory, error.strerror)
        return ()
    expendable = retention.expendable(own)
    if not expendable:
        return ()
    newest_whole = next((step for step in sorted(own, reverse=True) if _proves_whole(own[step])), None)
    if newest_whole is None:
        _log.warning("%s: no checkpoint proves whole; none is deleted", directory)
        return ()
    removed = []
    for step in expendable:
        if step == newest_whole:
            continue
        try:
            _remove(own[step], files)
            removed.append(own[step])
        except OSError as error:
            _log.warning("%s: cannot be deleted (%s); the next save tries again", own[step], error.strerror)
    return tuple(removed)


def _remove(path: Path, files: Files) -> None:
    aside = deleted_name(path)
    files.rename(path, aside)
    files.sync_directory(path.parent)  # before its files go: else a power cut could bring back what is left of it
    files.remove_tree(aside)


def _is_of_run(path: Path, step: int, run_id: str) -> bool:
    try:
        manifest = verify_checkpoint(path, hashes=False)
    except CheckpointError:
        return False
    return (manifest.run_id, manifest.step) == (run_id, step)


def _proves_whole(path: Path) -> bool:
    try:
        verify_checkpoint(path)
    except CheckpointError as error:
        _log.warning("%s", error)
        return False
    return True

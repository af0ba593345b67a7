"""Which checkpoint a path means: itself, or the newest one of a directory of checkpoints or of a run's output."""

from __future__ import annotations

from pathlib import Path

from megatron_glm.checkpoint.discovery import published, scan_checkpoints
from megatron_glm.checkpoint.format import MANIFEST, step_of
from megatron_glm.errors import CheckpointError

CHECKPOINTS = "checkpoints"  # beside the metrics, in the output of a run


def locate_checkpoint(path: Path, *, hashes: bool = False) -> Path:
    """The checkpoint that a user's path means; one that is named itself need not be whole.

    Args:
        hashes: where one is searched for, read and check every byte.

    Raises:
        CheckpointError: there is none.
    """
    if _is_checkpoint(path):
        return path
    scan = scan_checkpoints(_directory(path), hashes=hashes)
    if scan.newest:
        return scan.newest
    reasons = "".join(f"; {rejected.path}: {rejected.reason}" for rejected in scan.rejected)
    raise CheckpointError(f"{path}: no whole checkpoint there (expected step_00001000 or a directory of such){reasons}")


def checkpoints_at(path: Path) -> list[Path]:
    """All checkpoints that a user's path means, whole or not, by step. Raises CheckpointError: there are none."""
    found = [path] if _is_checkpoint(path) else [entry for _, entry in sorted(published(_directory(path)).items())]
    if not found:
        raise CheckpointError(f"{path}: no checkpoint there (expected step_00001000 or a directory of such)")
    return found


def _is_checkpoint(path: Path) -> bool:
    return (path / MANIFEST).is_file() or (step_of(path.name) is not None and path.is_dir())


def _directory(path: Path) -> Path:
    return path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path

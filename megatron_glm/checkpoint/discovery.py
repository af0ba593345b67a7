"""Finding the newest whole checkpoint by looking, not by believing a pointer file.

A `latest` file would be one more thing that can be stale, empty or wrong, and it could only repeat
what the names and manifests say; so there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from megatron_glm.checkpoint.format import step_of
from megatron_glm.checkpoint.manifest import verify_checkpoint
from megatron_glm.errors import CheckpointError, is_of_machine
from megatron_glm.files import TEMPORARY_SUFFIX

_REPLACED_SUFFIX = ".replaced"
_DELETED_SUFFIX = ".deleted"


@dataclass(frozen=True)
class Rejected:
    """A directory that looks like a checkpoint and is none, and why.

    Attributes:
        of_machine: it could not be read now; what is in it is not known.
    """

    path: Path
    reason: str
    of_machine: bool = False


@dataclass(frozen=True)
class Scan:
    """What a directory holds: the newest whole checkpoint, and the newer ones that are not whole."""

    newest: Path | None
    rejected: tuple[Rejected, ...]


def scan_checkpoints(directory: Path, *, hashes: bool = False) -> Scan:
    """Look for checkpoints from the newest step down to the first whole one.

    Args:
        hashes: read and check every byte of a candidate; otherwise its manifest, names and sizes.
    """
    rejected = []
    for step, path in sorted(_candidates(directory).items(), reverse=True):
        try:
            found = verify_checkpoint(path, hashes=hashes).step
            if found != step:
                raise CheckpointError(f"{path} holds step {found}")
            return Scan(path, tuple(rejected))
        except CheckpointError as error:
            rejected.append(Rejected(path, str(error), is_of_machine(error)))
    return Scan(None, tuple(rejected))


def find_checkpoint(directory: Path) -> Path | None:
    """The newest whole checkpoint under `directory` (by manifest and sizes); None if there is none."""
    return scan_checkpoints(directory).newest


def published(directory: Path) -> dict[int, Path]:
    """The directories that have the name of a checkpoint, whole or not, by step."""
    return _by_step(directory, step_of)


def replaced_name(path: Path) -> Path:
    """Where a checkpoint is kept while a new one of the same step takes its place."""
    return path.with_name(f".{path.name}{_REPLACED_SUFFIX}")


def step_of_replaced(name: str) -> int | None:
    """The step of a name made by `replaced_name`; None for any other name."""
    return _step_of_hidden(name, _REPLACED_SUFFIX)


def deleted_name(path: Path) -> Path:
    """What a checkpoint is called while it is deleted."""
    return path.with_name(f".{path.name}{_DELETED_SUFFIX}")


def step_of_deleted(name: str) -> int | None:
    """The step of a name made by `deleted_name`; None for any other name."""
    return _step_of_hidden(name, _DELETED_SUFFIX)


def step_of_temporary(name: str) -> int | None:
    """The step of an unfinished checkpoint's name; None for any other name."""
    return _step_of_hidden(name, TEMPORARY_SUFFIX)


def _step_of_hidden(name: str, suffix: str) -> int | None:
    if not (name.startswith(".") and name.endswith(suffix)):
        return None
    return step_of(name[1:].removesuffix(suffix))


def _candidates(directory: Path) -> dict[int, Path]:
    """Directories by step; one that was moved aside counts only while nothing has taken its place."""
    return _by_step(directory, step_of_replaced) | published(directory)


def _by_step(directory: Path, step_of_name: Callable[[str], int | None]) -> dict[int, Path]:
    if not directory.is_dir():
        return {}
    paths = [path for path in directory.iterdir() if path.is_dir()]
    return {step: path for path in paths if (step := step_of_name(path.name)) is not None}

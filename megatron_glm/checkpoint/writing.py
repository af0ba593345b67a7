"""Saving a checkpoint: all ranks write, all agree, one publishes.

Everything is written under a temporary name. A rename makes it visible, after every byte is on the
disk and every rank has said that its part is well; whatever fails or is killed before leaves the
older checkpoints as they were.

A step that was saved before (by a run that went another way) is replaced by the same rename: the
old directory is only moved aside for that moment, under a name that discovery knows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from megatron_glm.checkpoint.discovery import replaced_name, step_of_deleted, step_of_replaced, step_of_temporary
from megatron_glm.checkpoint.fingerprint import added_up
from megatron_glm.checkpoint.fingerprint_file import fingerprints_to_json
from megatron_glm.checkpoint.format import (
    FINGERPRINTS,
    MANIFEST,
    PARAMETERS,
    STATE,
    Fragment,
    check_file_name,
    is_attachment,
    step_directory,
)
from megatron_glm.checkpoint.index import Index, Piece
from megatron_glm.checkpoint.manifest import FileRecord, Manifest
from megatron_glm.checkpoint.parts import write_file, write_parts
from megatron_glm.errors import CheckpointError
from megatron_glm.files import Files, temporary_name
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.parallel.together import together

_PART_BYTES = 128 << 20
_log = logging.getLogger(__name__)


def save_checkpoint(
    directory: Path,
    *,
    run_id: str,
    step: int,
    fragments: Iterable[Fragment],
    shapes: Mapping[str, tuple[int, ...]],
    state: Mapping[str, Any],
    ranks: Ranks,
    attachments: Mapping[str, bytes] | None = None,
    files: Files | None = None,
    part_bytes: int = _PART_BYTES,
) -> Path:
    """Save `step` under `directory` (one that all ranks share); called by all ranks together.

    Args:
        fragments: what this rank holds. Producing them must not wait for other ranks, which may
            have failed already.
        shapes: of the whole model's parameters; rank 0's is used, as are its `state` and `attachments`.
        state: anything JSON can hold.
        attachments: further files by relative path, e.g. `tokenizer/tokenizer.model`.
        part_bytes: a rank's files are about this large; writing takes twice as much memory.

    Returns the published directory.

    Raises:
        CheckpointError: on every rank, if any rank failed; names the rank and the reason. Nothing
            half-written is left, and older checkpoints are untouched.
    """
    files = files or Files()
    target = step_directory(directory, step)
    temporary, failed = temporary_name(target), f"{target}: not saved"

    def prepare() -> None:
        for name in attachments or {}:
            check_file_name(name)
            if not is_attachment(name):
                raise CheckpointError(f"attachment {name!r} has the name of a file of the format")
        if not directory.exists():
            files.make_directory(directory)
            files.sync_directory(directory.parent)
        _tidy(directory, files)
        files.make_directory(temporary)

    def write() -> dict[str, Any]:
        records, pieces, sums = write_parts(temporary, ranks.rank, fragments, part_bytes, files)
        return {
            "files": {name: asdict(record) for name, record in records.items()},
            "pieces": [asdict(piece) for piece in pieces],
            "fingerprints": sums,
        }

    def publish(written: list[dict[str, Any]]) -> None:
        records = {name: FileRecord(**record) for part in written for name, record in part["files"].items()}
        index = Index(shapes, (Piece(**piece) for part in written for piece in part["pieces"]))
        contents = {
            **(attachments or {}),
            PARAMETERS: index.to_json(),
            FINGERPRINTS: fingerprints_to_json(added_up(part["fingerprints"] for part in written), shapes),
            STATE: _state_json(state),
        }
        _write_contents(temporary, contents, records, files)
        manifest = Manifest(run_id, step, records)
        # A rank of another machine may have written to a disk of its own.
        manifest.check_files(temporary, hashes=False)
        write_file(temporary / MANIFEST, manifest.to_json(), files)
        files.sync_directory(temporary)
        _swap_in(temporary, target, files)

    leads = ranks.rank == 0
    try:
        together(ranks, failed, prepare if leads else lambda: None)
        written = together(ranks, failed, write)
        together(ranks, failed, (lambda: publish(written)) if leads else lambda: None)
    except BaseException as error:
        if leads:
            with suppress(OSError):  # the first failure is the one to report; the next save tidies again
                _tidy(directory, files)
        if isinstance(error, CheckpointError):  # all ranks know: no one leaves before the disk is tidy
            ranks.barrier()
        raise
    return target


def _state_json(state: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(state, indent=1, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{STATE}: the state cannot be written as JSON: {error}") from error


def _write_contents(
    temporary: Path, contents: Mapping[str, bytes], records: dict[str, FileRecord], files: Files
) -> None:
    subdirectories: set[Path] = set()
    for name, data in contents.items():
        path = temporary / name
        if not path.parent.exists():
            files.make_directory(path.parent)
        subdirectories.update(parent for parent in path.parents if parent.is_relative_to(temporary))
        records[name] = write_file(path, data, files)
    for subdirectory in sorted(subdirectories - {temporary}):
        files.sync_directory(subdirectory)


def _swap_in(temporary: Path, target: Path, files: Files) -> None:
    """Make a finished directory visible; a checkpoint of the same step gives way to it."""
    replaced = replaced_name(target)
    if target.exists():
        files.rename(target, replaced)
    files.rename(temporary, target)
    files.sync_directory(target.parent)
    if replaced.exists():
        try:
            files.remove_tree(replaced)
        except OSError as error:
            _log.warning("%s: cannot be removed (%s); the next save tries again", replaced, error.strerror)


def _tidy(directory: Path, files: Files) -> None:
    """Remove what interrupted saves have left; put back a checkpoint whose replacement never came."""
    for path in sorted(directory.iterdir()):
        if step_of_temporary(path.name) is not None:
            _log.warning("%s: left by an interrupted save, removed", path)
            files.remove_tree(path)
        elif step_of_deleted(path.name) is not None:
            files.remove_tree(path)
        elif (step := step_of_replaced(path.name)) is not None:
            target = step_directory(directory, step)
            if target.exists():
                files.remove_tree(path)
            else:
                files.rename(path, target)
                files.sync_directory(directory)

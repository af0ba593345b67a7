"""How one rank's fragments become safetensors files, a bounded number of bytes at a time."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save as serialise

from megatron_glm.checkpoint.fingerprint import added_up, fingerprints
from megatron_glm.checkpoint.format import Fragment, part_name
from megatron_glm.checkpoint.index import Piece
from megatron_glm.checkpoint.manifest import FileRecord
from megatron_glm.errors import CheckpointError
from megatron_glm.files import Files


def write_parts(
    directory: Path, rank: int, fragments: Iterable[Fragment], part_bytes: int, files: Files
) -> tuple[dict[str, FileRecord], list[Piece], dict[str, int]]:
    """Write a rank's fragments into files of about `part_bytes` (more only if one fragment is larger).

    Needs memory for two parts beside the fragments. Returns the files, where each fragment lies, and what the
    fragments add to the fingerprints of the parameters.
    """
    records: dict[str, FileRecord] = {}
    pieces: list[Piece] = []
    sums = []
    for number, part in enumerate(_batches(fragments, part_bytes)):
        file = part_name(rank, number)
        tensors = {}
        for fragment in part:
            key = f"{fragment.name}/{fragment.kind}/{fragment.start}"
            tensors[key] = fragment.values.detach().cpu().contiguous()
            place = {"start": fragment.start, "rows": fragment.rows, "stride": fragment.stride}
            pieces.append(
                Piece(fragment.name, fragment.kind, length=fragment.values.numel(), file=file, key=key, **place)
            )
        sums.append(fingerprints(part))
        records[file] = write_file(directory / file, serialise(tensors), files)
    return records, pieces, added_up(sums)


def write_file(path: Path, data: bytes, files: Files) -> FileRecord:
    """Write and flush one new file to the disk.

    Raises:
        CheckpointError: the disk is full; says how much was needed and how much is free.
    """
    try:
        with files.open(path) as stream:
            files.write(stream, data)
            files.sync(stream)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(path.parent).free
        raise CheckpointError(f"{path.name}: {error.strerror}: {len(data)} bytes to write, {free} free") from error
    return FileRecord(len(data), hashlib.sha256(data).hexdigest())


def _batches(fragments: Iterable[Fragment], part_bytes: int) -> Iterator[list[Fragment]]:
    part: list[Fragment] = []
    size = 0
    for fragment in fragments:
        values = fragment.values
        if values.dtype != torch.float32 or values.dim() != 1:
            raise ValueError(
                f"fragment of {fragment.name} ({fragment.kind}): {values.dtype} {list(values.shape)}, must be fp32 [n]"
            )
        if part and size + 4 * values.numel() > part_bytes:
            yield part
            part, size = [], 0
        part.append(fragment)
        size += 4 * values.numel()
    if part:
        yield part

"""Seeing, before training starts, that a checkpoint can be saved when the time comes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import prod
from pathlib import Path

from megatron_glm.byte_sizes import size_text
from megatron_glm.checkpoint.format import KINDS
from megatron_glm.errors import CheckpointError
from megatron_glm.files import Files, temporary_name
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.parallel.together import together

_CHECKPOINTS = 2  # the newest one stays while the next is written


def checkpoint_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """What a checkpoint will take on the disk, up to a few per cent: weights and moments in fp32."""
    return 4 * len(KINDS) * sum(map(prod, shapes.values()))


def probe(
    directory: Path,
    *,
    bytes_of_one: int,
    ranks: Ranks,
    files: Files | None = None,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> None:
    """See that all ranks can write, flush, rename and delete in one and the same directory with room for two.

    Args:
        directory: of the checkpoints; made if need be.
        bytes_of_one: size of a checkpoint.

    Raises:
        CheckpointError: on all ranks: who cannot write and why, or what is needed and what is free.
    """
    files = files or Files()
    mine = directory / f".probe_{ranks.rank:05d}"
    cannot, advice = f"train.output: '{directory}' cannot be used", "; choose another"

    def look() -> None:
        if ranks.rank != 0:
            return
        for rank in range(ranks.size):
            if not (directory / f".probe_{rank:05d}").exists():
                raise CheckpointError(f"what rank {rank} writes is not seen here: its machine has another disk there")
        if (free := free_bytes(directory)) < _CHECKPOINTS * bytes_of_one:
            raise CheckpointError(
                f"a checkpoint takes {size_text(bytes_of_one)}, and two must find room, but {size_text(free)} are free"
            )

    together(ranks, cannot, lambda: directory.mkdir(parents=True, exist_ok=True), advice=advice)
    try:
        together(ranks, cannot, lambda: _write(mine, files), advice=advice)
        together(ranks, cannot, look, advice=advice)
    finally:
        with suppress(OSError):  # the first failure is the one to report
            if mine.exists():
                files.unlink(mine)


def _write(path: Path, files: Files) -> None:
    temporary = temporary_name(path)
    temporary.unlink(missing_ok=True)  # left by a probe that was killed
    with files.open(temporary) as stream:
        files.write(stream, b"probe")
        files.sync(stream)
    files.rename(temporary, path)
    files.sync_directory(path.parent)

"""`glm verify-checkpoint`: read every byte, and every value, and compare them with what was saved."""

from __future__ import annotations

import argparse
from pathlib import Path

from megatron_glm.byte_sizes import size_text
from megatron_glm.checkpoint.locating import checkpoints_at
from megatron_glm.checkpoint.manifest import verify_checkpoint
from megatron_glm.errors import CheckpointError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        type=Path,
        help="a checkpoint, or a directory of checkpoints or the output of a run, of which all are read",
    )
    parser.epilog = "The exit code is 0 if all are whole, and 2 if any is not."


def run(args: argparse.Namespace) -> None:
    """Raises CheckpointError naming what is damaged, after all have been read."""
    damaged = []
    paths = checkpoints_at(args.path)
    for path in paths:
        try:
            print(f"{path}: {verify_values(path)}", flush=True)
        except CheckpointError as error:
            damaged.append(f"{path.name}: {error}")
            print(f"{path}: DAMAGED", flush=True)
    if damaged:
        raise CheckpointError(f"{len(damaged)} of {len(paths)} checkpoints damaged: {'; '.join(damaged)}")


def verify_values(path: Path) -> str:
    """Check files, coverage and the fingerprint of every value; returns what was found, in words.

    Raises:
        CheckpointError: names the file or the parameter that is not what was saved.
    """
    from megatron_glm.checkpoint.reading import CheckpointReader

    manifest = verify_checkpoint(path)
    reader = CheckpointReader(path, verify=False)
    saved, found = reader.fingerprints(), reader.computed_fingerprints()
    if different := sorted(key for key in saved if saved[key] != found[key]):
        raise CheckpointError(f"{path}: the values of '{different[0]}' are not those that were saved")
    sizes = [record.size for record in manifest.files.values()]
    return f"whole: {len(sizes)} files with {size_text(sum(sizes))}, {len(found)} fingerprints"

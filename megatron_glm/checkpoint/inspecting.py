"""`glm inspect-checkpoint`: what a checkpoint is, without reading its tensors."""

from __future__ import annotations

import argparse
from pathlib import Path

from megatron_glm.checkpoint.locating import checkpoints_at
from megatron_glm.command import EXIT_USER_ERROR, printable
from megatron_glm.errors import CheckpointError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", type=Path, help="a checkpoint, a directory of checkpoints, or the output of a run; several: a line each"
    )
    parser.epilog = "Names and sizes of its files are checked, and the descriptions read; verify-checkpoint reads all."


def run(args: argparse.Namespace) -> int:
    from megatron_glm.checkpoint.overview import facts, overview

    paths = checkpoints_at(args.path)
    if len(paths) > 1:
        damaged = [reason for path in paths if (reason := _print_line(path))]
        return EXIT_USER_ERROR if damaged else 0
    found = overview(paths[0])
    lines = {"checkpoint": str(paths[0]), **dict(facts(found))}
    damage = found.damage
    lines["whole"] = f"NO: {damage}" if damage else "names and sizes agree; glm verify-checkpoint reads the contents"
    width = max(map(len, lines))
    for name, text in lines.items():
        print(f"{name:>{width}}  {printable(text)}")
    return EXIT_USER_ERROR if damage else 0


def _print_line(path: Path) -> str | None:
    """One line for a checkpoint; returns what is wrong with it."""
    from megatron_glm.checkpoint.overview import facts, overview

    try:
        found = overview(path)
        known, damage = dict(facts(found)), found.damage
    except CheckpointError as error:
        known, damage = {}, str(error)
    told = [f"{name} {known[name]}" for name in ("saved", "loss", "size") if name in known]
    print(printable("  ".join([path.name, *told, f"NOT WHOLE: {damage}" if damage else "sizes agree"])))
    return damage

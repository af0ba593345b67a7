"""Measure the tiles of the kernels on this machine's GPU, and write the fastest to a JSON file.

Training reads that file when the environment variable GLM_KERNEL_TILES names it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glm_kernels.tuning import Problem


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m glm_kernels.tune", description=__doc__)
    parser.add_argument("--output", type=Path, metavar="FILE", help="the JSON file; what else it holds is kept")
    parser.add_argument("--entries", metavar="PATTERN", default="*", help="which, such as 'attention_*_d64*' (all)")
    parser.add_argument("--dry-run", action="store_true", help="list the candidates; needs no GPU and writes nothing")
    args = parser.parse_args(argv)
    try:
        run(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(args: argparse.Namespace) -> None:
    from glm_kernels.tuning import Workload, all_problems

    if args.output is None and not args.dry_run:
        raise ValueError("--output: missing; the JSON file to write (or --dry-run, to list the candidates)")
    problems = list(all_problems(Workload()))
    found = [problem for problem in problems if fnmatchcase(problem.entry, args.entries)]
    if not found:
        names = ", ".join(problem.entry for problem in problems)
        raise ValueError(f"--entries: {args.entries!r} is the pattern of none of {names}")
    if not args.dry_run:
        _measure(args.output, found)
        return
    for problem in found:
        print(f"{problem.entry}: {len(problem.candidates)} candidates")
        print("  " + ", ".join(tile.label() for tile in problem.candidates))


def _measure(output: Path, found: Iterable[Problem]) -> None:
    import torch
    from triton.runtime.errors import OutOfResources
    from triton.testing import do_bench

    from glm_kernels.tiles import architecture, read_tiles, write_tiles
    from glm_kernels.tuning import fastest

    if not torch.cuda.is_available():
        raise ValueError("no GPU: tiles are measured on the one that they are for (--dry-run lists the candidates)")
    here = architecture(torch.device("cuda"))
    tiles = {**read_tiles(output)} if output.exists() else {}
    tiles[here] = {**tiles.get(here, {})}
    for problem in found:
        choice = fastest(
            problem,
            architecture=here,
            device="cuda",
            measure=lambda call: do_bench(call, return_mode="median"),
            too_large=OutOfResources,
        )
        tiles[here][problem.entry] = choice.tile
        took, table = choice.milliseconds, choice.tables_milliseconds
        print(f"{here}.{problem.entry}: {choice.tile.label()}  {took:.4f} ms (the table's: {table:.4f} ms)", flush=True)
        # After every entry, so that one that fails costs none of the others; whole, or as it was.
        partial = output.with_suffix(".partial")
        partial.write_text(write_tiles(tiles), encoding="utf-8")
        partial.replace(output)


if __name__ == "__main__":
    sys.exit(main())

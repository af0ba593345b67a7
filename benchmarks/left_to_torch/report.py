"""Are norms and bias + GELU rightly left to torch? What compiling them gives, for a GPU that is not here and on a CPU.

    python -m benchmarks.left_to_torch.report [--json benchmarks/results/left_to_torch.json]

Prints two tables: what the kernels that torch.compile generates for an A100 and an H100 move, beside what has to be
moved; and times on this CPU beside a scaling. Each part runs in a process of its own (`on_gpu`, `on_cpu`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.left_to_torch.on_cpu import CEILING, COMPILED, EAGER
from benchmarks.origin import origin

Row = dict[str, Any]
ARCHITECTURES = ("sm_80", "sm_90")
# The C library keeps what is freed: to get fresh pages for it would take longer than what is timed.
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results here as well")
    args = parser.parse_args(argv)
    arguments = sys.argv[1:] if argv is None else argv
    report = origin("benchmarks.left_to_torch.report", arguments, ["torch", "triton"])
    report["cpu"] = rows("on_cpu", [])
    report["gpu"] = [row for arch in ARCHITECTURES for row in rows("on_gpu", ["--arch", arch])]
    print("\n".join([*gpu_table(report["gpu"]), "", *cpu_table(report["cpu"])]))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def rows(part: str, arguments: Sequence[str]) -> list[Row]:
    """What a part writes, in a process of its own.

    Raises:
        subprocess.CalledProcessError: it failed; standard error says why.
    """
    # What is decorated under Triton's interpreter cannot be compiled.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | KEEP
    command = [sys.executable, "-m", f"benchmarks.left_to_torch.{part}", *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def gpu_table(rows: Sequence[Row]) -> Iterator[str]:
    """By part, type and width, forward / backward; what the architectures do not agree on has all their values."""
    registers = [f"registers, {arch}" for arch in ARCHITECTURES]
    head = ["", "kernels", "bytes moved, of the least", "not compiled, at least", "loaded again", *registers, "spilled"]
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    lines: dict[tuple, dict[str, list[Row]]] = {}
    for row in rows:
        place = row["part"], row["type"], row["hidden"]
        lines.setdefault(place, {}).setdefault(row["arch"], []).append(row)
    for place, by_arch in lines.items():
        common = (", ".join(dict.fromkeys(values)) for values in zip(*map(_figures, by_arch.values()), strict=True))
        most = [_most(by_arch[arch], "registers") for arch in ARCHITECTURES]
        spilled = dict.fromkeys(_most(pair, "spill_bytes") for pair in by_arch.values())
        yield f"| {' | '.join([', '.join(map(str, place)), *common, *most, ', '.join(spilled)])} |"


def _figures(pair: Sequence[Row]) -> Iterator[str]:
    yield " / ".join(str(len(row["launches"])) for row in pair)
    for name in ("moved", "not_compiled", "read_again"):
        yield " / ".join(f"{row[name] / row['least']:.2f}" for row in pair)


def _most(pair: Sequence[Row], name: str) -> str:
    return " / ".join(str(max(kernel[name] for kernel in row["kernels"].values())) for row in pair)


def cpu_table(rows: Sequence[Row]) -> Iterator[str]:
    """Milliseconds forward and both ways, and the share of a scaling's speed that both ways reach."""
    yield "| | not compiled | torch.compile | compiled is | of a scaling's speed: not compiled, compiled |"
    yield "|---|---|---|---|---|"
    for row in rows:
        eager, compiled, ceiling = (row["seconds"][way] for way in (EAGER, COMPILED, CEILING))
        times = (f"{1e3 * way['forward']:.1f} / {1e3 * way['both']:.1f} ms" for way in (eager, compiled))
        ratio = f"{eager['forward'] / compiled['forward']:.2f}× / {eager['both'] / compiled['both']:.2f}×"
        shares = (f"{1.25 * ceiling['both'] / way['both']:.2f}" for way in (eager, compiled))
        name = f"{row['part']}, {row['type']}, {row['tokens']} × {row['width']}"
        yield f"| {name} | {' | '.join(times)} | {ratio} | {', '.join(shares)} |"


if __name__ == "__main__":
    raise SystemExit(main())

"""What every entry of the kernels' tile tables compiles to, on two architectures and without a GPU.

    python -m benchmarks.kernel_resources [--anew]    compile what has changed, or all; write the figures and their page
    python -m benchmarks.kernel_resources --check     compare the written figures with the kernels as they are
    python -m benchmarks.kernel_resources --check --anew --recompile 1000

The figures of each version of Triton are a file of their own; the page shows all that there are. What has changed is
told by the program that the compiler would get. --check compares those, and compiles the given number of them anew, the
ones with the most registers first. Where no file of the kernels has changed since the figures were written, neither has
a program, and without --anew none is made for the comparison.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from glm_kernels.compilation import SHARED_MEMORY, Compilation
from megatron_glm.files import sha256_of

PACKAGES = ("attention", "embedding", "dropout", "loss")
RESULTS = Path(__file__).parent / "results"
SOURCES = Path(__file__).parents[1] / "kernels" / "glm_kernels"
PAGE = Path(__file__).parents[1] / "docs" / "kernel_resources.md"

Row = dict[str, Any]
Key = tuple[str, str, str]  # package, name, architecture


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 if a written figure is not that of today")
    parser.add_argument("--anew", action="store_true", help="compile, or compare, what has not changed too")
    parser.add_argument("--recompile", type=int, default=0, metavar="N", help="of a check: compile N of them anew")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the figures lie")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table goes")
    args = parser.parse_args(argv)
    file = args.results / f"kernel_resources_triton_{_triton_version()}.json"
    figures = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"rows": []}
    published = figures["rows"]
    if args.check:
        of_these_sources = figures.get("sources") == sources_hash(published)
        differences = list(check(published, args.recompile, programs=args.anew or not of_these_sources))
        print("\n".join([*differences, f"{file.name}: {len(differences)} differences"]))
        return 1 if differences else 0
    known = {} if args.anew else {(row["arch"], row["program"]): row for row in published}
    rows = []
    for package, compilation, arch in every_compilation():
        rows.append(row := measured(package, compilation, arch, known))
        known[arch, row["program"]] = row  # entries of a table may have one tile
    figures = {"triton": _triton_version(), "sources": sources_hash(rows), "rows": rows}
    file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    args.page.write_text(page(written(args.results)), encoding="utf-8")
    return 0


def every_compilation() -> Iterator[tuple[str, Compilation, str]]:
    """Package, kernel and architecture, of all tile tables."""
    for package in PACKAGES:
        for arch in SHARED_MEMORY:
            for compilation in import_module(f"glm_kernels.{package}.compilations").compilations(arch):
                yield package, compilation, arch


def sources_hash(rows: Sequence[Row]) -> str:
    """A hash of the kernels' files and of what is written of their programs: the same as long as both are."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.py")):
        digest.update(f"{path.relative_to(SOURCES)}\0{sha256_of(path)}\n".encode())
    for row in rows:
        digest.update(f"{' '.join(_key(row))}\0{row['program']}\n".encode())
    return digest.hexdigest()[:16]


def measured(package: str, compilation: Compilation, arch: str, known: Mapping[tuple[str, str], Row]) -> Row:
    """A kernel's figures and the hash of the program that they are of; known: figures by architecture and program."""
    from glm_kernels.compilation import compile_for, fingerprint

    program = fingerprint(compilation, arch)
    named = {"package": package, "name": compilation.name, "arch": arch, "program": program}
    if (arch, program) in known:
        return known[arch, program] | named
    compiled = asdict(compile_for(compilation, arch))
    return named | compiled | {"warnings": list(compiled["warnings"])}


def check(rows: Sequence[Row], recompiled: int, *, programs: bool) -> Iterator[str]:
    """A line for each figure that is missing, left over or of another program, or comes out otherwise today.

    Args:
        recompiled: how many are compiled anew.
        programs: whether those of today are made, and compared.
    """
    from glm_kernels.compilation import fingerprint

    published = {_key(row): row for row in rows}
    todays = {(package, compilation.name, arch): compilation for package, compilation, arch in every_compilation()}
    yield from (f"{' '.join(key)}: its kernel is gone" for key in published.keys() - todays.keys())
    yield from (f"{' '.join(key)}: has no figures" for key in todays.keys() - published.keys())
    known = [key for key in published if key in todays]
    for key in known if programs else ():
        if published[key]["program"] != fingerprint(todays[key], key[2]):
            yield f"{' '.join(key)}: the figures are of another program"
    known.sort(key=lambda key: published[key]["registers"], reverse=True)
    fresh: dict[tuple[str, str], Row] = {}
    for key in known[:recompiled]:
        row = measured(key[0], todays[key], key[2], fresh)
        fresh[key[2], row["program"]] = row
        if row != published[key]:
            yield f"{' '.join(key)}: {row} instead of {published[key]}"


def written(results: Path) -> dict[str, list[Row]]:
    """The rows of each version of Triton that there are figures of, newest first."""
    files = sorted(results.glob("kernel_resources_triton_*.json"), reverse=True)
    read = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return {figures["triton"]: figures["rows"] for figures in read}


def page(versions: Mapping[str, Sequence[Row]]) -> str:
    """The table in Markdown."""
    columns = [(arch, version) for arch in SHARED_MEMORY for version in versions]
    cells = {(version, *_key(row)): _cell(row) for version, rows in versions.items() for row in rows}
    names = sorted(
        {_key(row)[:2] for rows in versions.values() for row in rows}, key=lambda key: PACKAGES.index(key[0])
    )
    lines = [_INTRODUCTION]
    for package, group in groupby(names, key=lambda key: key[0]):
        head = [f"{arch}, Triton {version}" for arch, version in columns]
        lines += [f"\n## {package.capitalize()}", f"| kernel | {' | '.join(head)} |", "|---" * (1 + len(head)) + "|"]
        for _, name in sorted(group):
            row = [cells.get((version, package, name, arch), "–") for arch, version in columns]
            lines.append(f"| {name} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _key(row: Row) -> Key:
    return row["package"], row["name"], row["arch"]


def _cell(row: Row) -> str:
    return f"{row['registers']} / {row['spill_bytes']} / {row['shared_bytes'] / 1024:.3g}"


def _triton_version() -> str:
    from triton import __version__

    return __version__


_INTRODUCTION = """# What the kernels compile to

Every entry of the tile tables, compiled ahead of time for an A100 (sm_80) and an H100 or H200 (sm_90), in each type of
number: registers a thread / bytes of them spilled to memory / KB of shared memory a block. A block may have 255
registers a thread, and 163 KB on sm_80, 227 KB on sm_90. `python -m benchmarks.kernel_resources` writes this page; a
test holds it against the kernels, and that nothing spills more than 64 bytes, that products of 16-bit numbers run on
the tensor cores and that the assembler has nothing to say."""

if __name__ == "__main__":
    raise SystemExit(main())

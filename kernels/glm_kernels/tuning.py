"""Which tile of an entry is the fastest on a machine: the candidates, the work to measure them by, the choice.

A package lists the entries of its table in a module of its own, `glm_kernels/<package>/tuning.py`, as
`problems(workload) -> Iterator[Problem]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product

from glm_kernels.tiles import Table, Tile, find_tile, trying

PACKAGES = ("attention", "embedding", "dropout", "loss")
Measure = Callable[[Callable[[], object]], float]
_NOISE = 0.01  # a gain below this share of the time is none


@dataclass(frozen=True)
class Workload:
    """A micro-batch that tiles are measured on; the sizes of GLM-Large."""

    tokens: int = 16384
    targets: int = 4096
    hidden: int = 1024
    words: int = 50304
    heads: int = 16
    segment: int = 512  # tokens of a sample
    long_segment: int = 2048


@dataclass(frozen=True)
class Problem:
    """An entry of a tile table.

    Args:
        table: the one that the entry is in.
        make: the work, for a device given by name; what it returns launches the kernel once, by its usual way.
    """

    entry: str
    table: Table
    candidates: Sequence[Tile]
    make: Callable[[str], Callable[[], object]]


@dataclass(frozen=True)
class Choice:
    """The tile that is the fastest, and what it and the table's take, in milliseconds."""

    tile: Tile
    milliseconds: float
    tables_milliseconds: float


def combinations(
    blocks: Mapping[str, Sequence[int]], *, num_warps: Sequence[int], num_stages: Sequence[int]
) -> tuple[Tile, ...]:
    """Every tile of these sizes."""
    return tuple(
        Tile(dict(zip(blocks, sizes, strict=True)), warps, stages)
        for *sizes, warps, stages in product(*blocks.values(), num_warps, num_stages)
    )


def all_problems(workload: Workload) -> Iterator[Problem]:
    """The entries of all packages."""
    for package in PACKAGES:
        yield from import_module(f"glm_kernels.{package}.tuning").problems(workload)


def fastest(
    problem: Problem, *, architecture: str, device: str, measure: Measure, too_large: type[Exception]
) -> Choice:
    """Measure all candidates of an entry and the table's tile; the table's stays unless another one is faster.

    Args:
        architecture: whose tile of the table is meant.
        measure: milliseconds of a call.
        too_large: what a launch raises whose tile does not fit the device; it is passed over then.
    """
    run = problem.make(device)

    def milliseconds(tile: Tile) -> float:
        with trying({problem.entry: tile}):
            try:
                return measure(run)
            except too_large:
                return float("inf")

    tables = find_tile(problem.table, problem.entry, architecture)
    as_it_is = milliseconds(tables)
    tile, best = min(((tile, milliseconds(tile)) for tile in problem.candidates), key=lambda found: found[1])
    if best >= as_it_is * (1 - _NOISE):
        return Choice(tables, as_it_is, as_it_is)
    return Choice(tile, best, as_it_is)

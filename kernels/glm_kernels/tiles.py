"""The tile sizes that kernels are compiled with: fixed tables by architecture, never measured at run time.

Tuning at run time picks other tiles on other ranks, so that their sums differ in the last bits, and compiles
every candidate on every start. Here each kernel has a table in its package; `python -m glm_kernels.tune` measures
a machine's own and writes them to a JSON file, which the environment variable GLM_KERNEL_TILES names:

    {"sm_90": {"attention_forward_d64": {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

VARIABLE = "GLM_KERNEL_TILES"
_LAUNCH = ("num_warps", "num_stages")
_on_trial: ContextVar[Mapping[str, Tile]] = ContextVar("tiles on trial")


@dataclass(frozen=True)
class Tile:
    """What one kernel is compiled with.

    Args:
        blocks: its constexpr sizes by their names in the kernel, powers of two.
        num_warps: warps of a program.
        num_stages: depth of the software pipeline of its loads.
    """

    blocks: Mapping[str, int]
    num_warps: int
    num_stages: int

    def __post_init__(self):
        for name, value in self.launch().items():
            power_of_two = isinstance(value, int) and value > 0 and value & (value - 1) == 0
            if name != "num_stages" and not power_of_two:
                raise ValueError(f"{name}: {value!r} is not a power of two")
        if not (isinstance(self.num_stages, int) and 1 <= self.num_stages <= 8):
            raise ValueError(f"num_stages: {self.num_stages!r} is not in 1..8")

    def launch(self) -> dict[str, int]:
        """The keyword arguments of a launch: kernel[grid](..., **tile.launch())."""
        return {**self.blocks, **self.options()}

    def options(self) -> dict[str, int]:
        """What of it is an option of the compiler, and no size in the kernel."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}

    def label(self) -> str:
        """In short: 128x64 w8 s3."""
        return f"{'x'.join(map(str, self.blocks.values()))} w{self.num_warps} s{self.num_stages}"


Table = Mapping[str, Mapping[str, Tile]]  # architecture ("sm_90") -> entry ("attention_forward_d64") -> tile


def find_tile(table: Table, entry: str, architecture: str, *, overrides: Path | None = None) -> Tile:
    """The tile of a table's entry for an architecture, "sm_90": of the overrides, else of the nearest one.

    The nearest is the newest architecture of the table that is not newer, or the table's oldest.

    Args:
        overrides: a file as the tuner writes it; default: the one that GLM_KERNEL_TILES names, if it is set. It
            counts for the architectures that it names.

    Raises:
        ValueError: the file cannot be read, or its entry is not one for this kernel.
    """
    tile = table[_nearest(tuple(table), architecture)][entry]
    if entry in (tried := _on_trial.get({})):
        return tried[entry]
    path = overrides or os.environ.get(VARIABLE)
    found = read_tiles(Path(path)).get(architecture, {}).get(entry) if path else None
    if found is None:
        return tile
    if found.blocks.keys() != tile.blocks.keys():
        raise ValueError(f"{path}: {architecture}.{entry}: has {sorted(found.blocks)}, wants {sorted(tile.blocks)}")
    return found


@contextmanager
def trying(tiles: Mapping[str, Tile]) -> Iterator[None]:
    """Inside, kernels launched by this thread have these tiles, by entry: for the tuner and for tests."""
    token = _on_trial.set({**_on_trial.get({}), **tiles})
    try:
        yield
    finally:
        _on_trial.reset(token)


def architecture(device: torch.device) -> str:
    """The architecture of a GPU, "sm_90"; of a CPU, where the interpreter runs, the oldest that has a table."""
    import torch  # here: a table can be read without it

    if device.type != "cuda":
        return "sm_80"
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@cache
def read_tiles(path: Path) -> dict[str, dict[str, Tile]]:
    """The tiles of a JSON file, by architecture and entry.

    Raises:
        ValueError: the file is not there or not of this form.
    """
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return {
            architecture: {entry: _tile(f"{architecture}.{entry}", sizes) for entry, sizes in entries.items()}
            for architecture, entries in read.items()
        }
    except (OSError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path}: no table of kernel tiles ({error}); write one with python -m glm_kernels.tune"
        ) from error


def write_tiles(tiles: Table) -> str:
    """The JSON text that `read_tiles` reads."""
    plain = {
        architecture: {entry: tile.launch() for entry, tile in entries.items()}
        for architecture, entries in tiles.items()
    }
    return json.dumps(plain, indent=2, sort_keys=True) + "\n"


def _tile(place: str, sizes: Mapping[str, Any]) -> Tile:
    try:
        blocks = {name: size for name, size in sizes.items() if name not in _LAUNCH}
        return Tile(blocks, *(sizes[name] for name in _LAUNCH))
    except (AttributeError, KeyError, ValueError) as error:
        missing = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{place}: {missing}") from error


def _nearest(known: tuple[str, ...], architecture: str) -> str:
    by_age = sorted(known, key=_number)
    not_newer = [name for name in by_age if _number(name) <= _number(architecture)]
    return not_newer[-1] if not_newer else by_age[0]


def _number(architecture: str) -> int:
    return int(architecture.removeprefix("sm_"))

"""The canonical checkpoint: what it holds and how its files are named.

    step_00001000/
      manifest.json                     every other file with its size and SHA-256; run, step
      parameters.json                   name → shape and where each flat range of each kind lies
      fingerprints.json                 a hash of each kind of each parameter, the same under every layout
      state.json                        whatever the trainer needs besides tensors
      rank_00003_000.safetensors …      the fragments that rank 3 wrote
      tokenizer/…                       attachments

No layout is in it: a fragment is a flat range of a whole parameter, or columns of some of its rows,
under the parameter's original name, so any layout can read what any other has written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, get_args

from megatron_glm.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
PARAMETERS = "parameters.json"
STATE = "state.json"
FINGERPRINTS = "fingerprints.json"

Kind = Literal["weight", "exp_avg", "exp_avg_sq"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_STEP_NAME = re.compile(r"step_(\d{8,})")
_PART_NAME = re.compile(r"rank_\d{5,}_\d{3,}\.safetensors")


@dataclass(frozen=True)
class Fragment:
    """A flat range of one parameter, or some columns of some of its rows, held by one rank.

    Attributes:
        name: the parameter's name in the original release.
        kind: the fp32 weight or one of Adam's moments.
        start: first element in the flattened parameter.
        values: fp32 [n]; must keep its values until the save has returned.
        rows: of n / rows elements each; 1: a flat range.
        stride: from the first element of a row to that of the next, in the flattened parameter.
    """

    name: str
    kind: Kind
    start: int
    values: Tensor
    rows: int = 1
    stride: int = 0


def step_directory(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return directory / f"step_{step:08d}"


def step_of(name: str) -> int | None:
    """The step of a checkpoint directory's name; None for any other name."""
    match = _STEP_NAME.fullmatch(name)
    return int(match[1]) if match else None


def part_name(rank: int, part: int) -> str:
    """The name of the part-th file that a rank writes."""
    return f"rank_{rank:05d}_{part:03d}.safetensors"


def is_attachment(name: str) -> bool:
    """Whether a file of a checkpoint is none of the format's own."""
    return name not in (MANIFEST, PARAMETERS, FINGERPRINTS, STATE) and not _PART_NAME.fullmatch(name)


def check_file_name(name: str) -> None:
    """Raise CheckpointError unless `name` is a plain relative path (with /) that stays inside the checkpoint."""
    path = PurePosixPath(name)
    if (
        path.is_absolute()
        or ".." in path.parts
        or path.as_posix() != name
        or name == "."
        or "\\" in name
        or "\0" in name
    ):
        raise CheckpointError(f"{name!r} is no file of a checkpoint (allowed: a relative path without '..')")

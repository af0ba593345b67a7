"""parameters.json: where each flat range of each parameter lies."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from megatron_glm.checkpoint.format import FORMAT_VERSION, KINDS, Kind
from megatron_glm.errors import CheckpointError

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Piece:
    """Elements [start, start + length) of a flattened parameter, stored as one tensor of a file."""

    name: str
    kind: Kind
    start: int
    length: int
    file: str
    key: str


class Index:
    """All pieces of a checkpoint, seen to cover every kind of every parameter exactly once.

    Args:
        shapes: of all parameters.
        pieces: of all ranks, in any order.

    Raises:
        CheckpointError: a range is held twice or not at all, or lies outside its parameter.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], pieces: Iterable[Piece]):
        self.shapes: Shapes = {name: tuple(shape) for name, shape in shapes.items()}
        for name, shape in self.shapes.items():
            if any(size < 0 for size in shape):
                raise CheckpointError(f"'{name}' has the impossible shape {list(shape)}")
        self._pieces: dict[tuple[str, Kind], list[Piece]] = {(name, kind): [] for name in self.shapes for kind in KINDS}
        for piece in pieces:
            if (piece.name, piece.kind) not in self._pieces:
                raise CheckpointError(f"{piece.file}: '{piece.name}' ({piece.kind}) is no parameter of the model")
            if piece.length > 0:
                self._pieces[piece.name, piece.kind].append(piece)
        for (name, kind), held in self._pieces.items():
            held.sort(key=lambda piece: piece.start)
            _check_coverage(f"{name} ({kind})", held, math.prod(self.shapes[name]))

    def pieces(self, name: str, kind: Kind) -> list[Piece]:
        """The pieces of one kind of one parameter, by start."""
        return self._pieces[name, kind]

    def to_json(self) -> bytes:
        parameters = {
            name: {
                "shape": list(shape),
                "fragments": [
                    {key: value for key, value in asdict(piece).items() if key != "name"}
                    for kind in KINDS
                    for piece in self._pieces[name, kind]
                ],
            }
            for name, shape in sorted(self.shapes.items())
        }
        return json.dumps({"format_version": FORMAT_VERSION, "parameters": parameters}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Index:
        """Parse and check; `where` names the file in the error."""
        try:
            parameters = json.loads(data)["parameters"]
            shapes = {name: tuple(int(size) for size in entry["shape"]) for name, entry in parameters.items()}
            pieces = [
                Piece(
                    name=name,
                    kind=fragment["kind"],
                    start=int(fragment["start"]),
                    length=int(fragment["length"]),
                    file=str(fragment["file"]),
                    key=str(fragment["key"]),
                )
                for name, entry in parameters.items()
                for fragment in entry["fragments"]
            ]
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise CheckpointError(f"{where}: not a list of parameters ({error!r}); use another checkpoint") from error
        return cls(shapes, pieces)


def _check_coverage(what: str, pieces: list[Piece], size: int) -> None:
    end, holder = 0, "no file"
    for piece in pieces:
        if piece.start < 0 or piece.start + piece.length > size:
            raise CheckpointError(
                f"{what}: {piece.file} holds elements {piece.start}..{piece.start + piece.length} of {size}"
            )
        if piece.start < end:
            raise CheckpointError(f"{what}: element {piece.start} is in {holder} and again in {piece.file}")
        if piece.start > end:
            raise CheckpointError(f"{what}: elements {end}..{piece.start} of {size} are held by no rank")
        end, holder = piece.start + piece.length, piece.file
    if end < size:
        raise CheckpointError(f"{what}: elements {end}..{size} of {size} are held by no rank")

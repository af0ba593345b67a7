"""parameters.json: where each piece of each parameter lies."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, pairwise

from megatron_glm.checkpoint.format import FORMAT_VERSION, KINDS, Kind
from megatron_glm.errors import CheckpointError
from megatron_glm.json_reading import LARGEST, json_object, string, whole_number
from megatron_glm.parallel.rectangles import Rectangle, flat_range

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Piece:
    """A fragment, stored as one tensor of a file: `length` elements in `rows` rows, `stride` elements apart."""

    name: str
    kind: Kind
    start: int
    length: int
    file: str
    key: str
    rows: int = 1
    stride: int = 0

    def rectangles(self, stride: int) -> Iterator[Rectangle]:
        """It as rectangles on the rows of a parameter that has `stride` elements in each."""
        if self.rows == 1:
            return flat_range(self.start, self.start + self.length, stride)
        return iter([Rectangle(0, self.start, self.rows, self.length // self.rows, self.stride)])


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
            if any(size < 0 for size in shape) or math.prod(shape) > LARGEST:
                raise CheckpointError(f"'{name}' has the impossible shape {list(shape)}")
        self._pieces: dict[tuple[str, Kind], list[Piece]] = {(name, kind): [] for name in self.shapes for kind in KINDS}
        for piece in pieces:
            if (piece.name, piece.kind) not in self._pieces:
                raise CheckpointError(f"{piece.file}: '{piece.name}' ({piece.kind}) is no parameter of the model")
            if piece.length > 0:
                self._pieces[piece.name, piece.kind].append(piece)
        for (name, kind), held in self._pieces.items():
            held.sort(key=lambda piece: piece.start)
            check_coverage(f"{name} ({kind})", held, math.prod(self.shapes[name]))

    def stride(self, name: str, kind: Kind) -> int:
        """Elements of a row on which all pieces are rectangles; the whole parameter's where all are flat."""
        held = self._pieces[name, kind]
        return row_stride(held) or max(1, math.prod(self.shapes[name]))

    def pieces(self, name: str, kind: Kind) -> list[Piece]:
        """The pieces of one kind of one parameter, by start."""
        return self._pieces[name, kind]

    def check_room(self, sizes: Mapping[str, int], where: str) -> None:
        """See that files of these sizes, in bytes, can hold the pieces: else memory would be asked for in vain.

        Raises:
            CheckpointError: one cannot, or is not there.
        """
        wanted: Counter[str] = Counter()
        for piece in chain.from_iterable(self._pieces.values()):
            wanted[piece.file] += 4 * piece.length  # fp32
        for name, size in wanted.items():
            if name not in sizes:
                raise CheckpointError(f"{where}: wants values of {name!r}, which is not in the manifest")
            if size > sizes[name]:
                raise CheckpointError(f"{where}: wants {size} bytes of {name!r}, which has {sizes[name]}")

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
            parameters = json_object(data)["parameters"]
            shapes = {name: tuple(map(whole_number, entry["shape"])) for name, entry in parameters.items()}
            pieces = [
                Piece(
                    name=name,
                    kind=string(fragment["kind"]),
                    start=whole_number(fragment["start"]),
                    length=whole_number(fragment["length"]),
                    file=string(fragment["file"]),
                    key=string(fragment["key"]),
                    rows=whole_number(fragment["rows"]),
                    stride=whole_number(fragment["stride"]),
                )
                for name, entry in parameters.items()
                for fragment in entry["fragments"]
            ]
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"{where}: not a list of parameters ({error!r}); use another checkpoint") from error
        return cls(shapes, pieces)


def row_stride(pieces: Iterable[Piece]) -> int | None:
    """The stride that all pieces of more than one row share; None if there is no such piece."""
    return next((piece.stride for piece in pieces if piece.rows > 1), None)


def check_coverage(what: str, pieces: Sequence[Piece], size: int) -> None:
    """See that the pieces cover elements 0 … size − 1, each once.

    Args:
        what: names the parameter in the error.
        pieces: by start.

    Raises:
        CheckpointError: the first element that is held twice or not at all, or a piece that lies outside.
    """
    stride = row_stride(pieces)
    for piece in pieces:
        _check_inside(what, piece, stride, size)
    if stride is None:
        _check_row(what, [(piece.start, piece.start + piece.length, piece) for piece in pieces], 0, size, size)
        return
    held = [(rectangle, piece) for piece in pieces for rectangle in piece.rectangles(stride)]
    # Between two edges the same pieces cross every row.
    edges = sorted({0, size // stride, *(edge for rectangle, _ in held for edge in _rows_of(rectangle))})
    for first, after in pairwise(edges):
        row = [
            (first * stride + column, first * stride + column + rectangle.width, piece)
            for rectangle, piece in held
            if _rows_of(rectangle)[0] <= first and after <= _rows_of(rectangle)[1]
            for column in [rectangle.start % stride]
        ]
        _check_row(what, sorted(row, key=lambda part: part[0]), first * stride, (first + 1) * stride, size)


def _rows_of(rectangle: Rectangle) -> tuple[int, int]:
    first = rectangle.start // rectangle.stride
    return first, first + rectangle.rows


def _check_inside(what: str, piece: Piece, stride: int | None, size: int) -> None:
    width = piece.length // piece.rows if piece.rows > 0 else 0
    end = Rectangle(0, piece.start, piece.rows, width, piece.stride).end
    if piece.start < 0 or end > size:
        raise CheckpointError(f"{what}: {piece.file} holds elements {piece.start}..{end} of {size}")
    if piece.rows == 1:
        return
    fits = piece.rows > 1 and width * piece.rows == piece.length and piece.stride == stride
    if not fits or not stride or size % stride or piece.start % stride + width > stride:
        raise CheckpointError(
            f"{what}: {piece.file} holds {piece.length} elements from {piece.start} on as {piece.rows} rows "
            f"{piece.stride} apart, which is no part of {size} elements"
        )


def _check_row(what: str, parts: Sequence[tuple[int, int, Piece]], begin: int, stop: int, size: int) -> None:
    """See that parts (start, end, piece), by start, cover elements begin … stop − 1."""
    end, holder = begin, "no file"
    for start, after, piece in parts:
        if start < end:
            raise CheckpointError(f"{what}: element {start} is in {holder} and again in {piece.file}")
        if start > end:
            raise CheckpointError(f"{what}: elements {end}..{start} of {size} are held by no rank")
        end, holder = after, piece.file
    if end < stop:
        raise CheckpointError(f"{what}: elements {end}..{stop} of {size} are held by no rank")

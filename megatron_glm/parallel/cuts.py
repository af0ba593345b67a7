"""Which part of each parameter a tensor-parallel rank holds.

A rank has whole heads: of the fused projection [Q; K; V] its rows of each third. A parameter that is
not named here is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import TYPE_CHECKING

from megatron_glm.parallel.rectangles import Rectangle

if TYPE_CHECKING:  # the sizes of the parts are planned without torch
    from torch import Tensor


class Cut(Enum):
    """How a parameter is divided: along its rows, along the rows of each third, along its columns."""

    ROWS = "rows"
    THIRDS = "rows of each third"
    COLUMNS = "columns"


_CUTS = {
    "word_embeddings.weight": Cut.ROWS,
    "attention.query_key_value.weight": Cut.THIRDS,
    "attention.query_key_value.bias": Cut.THIRDS,
    "attention.dense.weight": Cut.COLUMNS,
    "mlp.dense_h_to_4h.weight": Cut.ROWS,
    "mlp.dense_h_to_4h.bias": Cut.ROWS,
    "mlp.dense_4h_to_h.weight": Cut.COLUMNS,
}


def cut_of(name: str) -> Cut | None:
    """How the parameter with this name in the original release is divided; None: not at all."""
    return next((cut for suffix, cut in _CUTS.items() if name.endswith(suffix)), None)


@dataclass(frozen=True)
class Shard:
    """The part of a parameter that tensor-parallel rank `rank` of `size` holds."""

    cut: Cut | None
    rank: int
    size: int

    @classmethod
    def of(cls, name: str, *, rank: int, size: int) -> Shard:
        return cls(cut_of(name) if size > 1 else None, rank, size)

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the part."""
        if self.cut is None:
            return whole
        if self.cut is Cut.COLUMNS:
            return whole[0], whole[1] // self.size
        return whole[0] // self.size, *whole[1:]

    def take(self, whole: Tensor) -> Tensor:
        """The part of a whole parameter, contiguous."""
        match self.cut:
            case None:
                return whole
            case Cut.ROWS:
                return whole.chunk(self.size, dim=0)[self.rank]
            case Cut.THIRDS:
                thirds = whole.unflatten(0, (3, -1)).chunk(self.size, dim=1)
                return thirds[self.rank].flatten(0, 1).contiguous()
            case Cut.COLUMNS:
                return whole.chunk(self.size, dim=1)[self.rank].contiguous()

    def rectangles(self, whole: tuple[int, ...], start: int, stop: int) -> Iterator[Rectangle]:
        """Elements [start, stop) of the flattened part, as they lie in a whole parameter of this shape; in order."""
        yield from self._rectangle(whole).part(start, stop)

    def _rectangle(self, whole: tuple[int, ...]) -> Rectangle:
        elements = prod(whole)
        match self.cut:
            case None:
                return Rectangle(0, 0, 1, elements, elements)
            case Cut.ROWS:
                width = elements // self.size
                return Rectangle(0, self.rank * width, 1, width, width)
            case Cut.THIRDS:
                third = elements // 3
                width = third // self.size
                return Rectangle(0, self.rank * width, 3, width, third)
            case Cut.COLUMNS:
                width = whole[1] // self.size
                return Rectangle(0, self.rank * width, whole[0], width, whole[1])

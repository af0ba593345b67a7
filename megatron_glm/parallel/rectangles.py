"""Pieces of a parameter that are no flat range: some columns of some rows.

A rank that shares a layer holds columns of a matrix, and a ZeRO rank a flat range of such a part; together
that is at most three rectangles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Rectangle:
    """Elements start + i · stride + j of a flattened parameter, i < rows, j < width.

    Where they are stored one row after another, element (i, j) is at offset + i · width + j.
    """

    offset: int
    start: int
    rows: int
    width: int
    stride: int

    @property
    def size(self) -> int:
        return self.rows * self.width

    @property
    def end(self) -> int:
        """The element of the flattened parameter after its last one."""
        return self.start + (self.rows - 1) * self.stride + self.width

    def part(self, first: int, last: int) -> Iterator[Rectangle]:
        """Its elements [first, last) in the order in which they are stored, offsets counted from `first`.

        A piece of a row, whole rows, and a piece of a row; what is empty is left out.
        """
        begin = first
        while first < last:
            row, column = divmod(first, self.width)
            if column or last - first < self.width:
                rows, width = 1, min(self.width - column, last - first)
            else:
                rows, width = (last - first) // self.width, self.width
            place = self.start + row * self.stride + column
            yield Rectangle(self.offset + first - begin, place, rows, width, self.stride)
            first += rows * width


def flat_range(start: int, stop: int, stride: int) -> Iterator[Rectangle]:
    """A flat range as rectangles on the rows of `stride` elements: none of them crosses a row's end."""
    whole = Rectangle(0, 0, -(-stop // stride), stride, stride)
    yield from whole.part(start, stop)

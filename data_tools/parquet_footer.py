"""Where the row groups of a Parquet file begin, read from its footer.

pyarrow knows it too, but ends the process when it is asked about a column whose statistics contradict the schema. The
footer is one struct of Thrift's compact protocol: every value tells its kind, so what nobody asks for is passed over.

Source: parquet.thrift of apache/parquet-format; the specification of the compact protocol in apache/thrift.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # the footer's length and the magic
_DEEPEST = 32  # values in values; what Parquet describes has eight
_BITS = 64  # of the longest number
# Kinds of values.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
# Fields: of the file's metadata, of a row group, of a column chunk, of its metadata.
_ROW_GROUPS, _COLUMNS, _METADATA, _DATA_PAGE, _DICTIONARY_PAGE = 4, 1, 3, 9, 11


def row_group_begins(path: str) -> list[int]:
    """The first byte of each row group, in the order of the footer; of one without columns the file's.

    Raises:
        ValueError: there is no footer, or it is not what Parquet describes.
    """
    footer, begins = _footer(path), []
    reader = _Compact(footer)
    for field, kind in reader.fields():
        if (field, kind) == (_ROW_GROUPS, _LIST):
            begins = [_first_byte(reader) for _ in reader.structs()]
        else:
            reader.skip(kind)
    end = os.path.getsize(path) - _TAIL_BYTES - len(footer)
    if outside := [begin for begin in begins if not 0 <= begin <= end]:
        raise ValueError(f"a row group begins at byte {outside[0]}, but the footer at {end}")
    return begins


def _footer(path: str) -> bytes:
    with open(path, "rb") as stream:
        size = stream.seek(0, io.SEEK_END)
        stream.seek(max(0, size - _TAIL_BYTES))
        tail = stream.read()
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length > size - _TAIL_BYTES:
            raise ValueError("it has no footer")
        stream.seek(size - _TAIL_BYTES - length)
        return stream.read(length)


def _first_byte(group: _Compact) -> int:
    begins: list[int] = []
    for field, kind in group.fields():
        if (field, kind) == (_COLUMNS, _LIST):
            begins = [begin for _ in group.structs() for begin in _column_begins(group)]
        else:
            group.skip(kind)
    return min(begins, default=0)


def _column_begins(column: _Compact) -> list[int]:
    """Of its pages; a column that lies in another file has none."""
    begins: list[int] = []
    for field, kind in column.fields():
        if (field, kind) == (_METADATA, _STRUCT):
            begins = _page_begins(column)
        else:
            column.skip(kind)
    return begins


def _page_begins(metadata: _Compact) -> list[int]:
    begins = []
    for field, kind in metadata.fields():
        if kind == _I64 and field in (_DATA_PAGE, _DICTIONARY_PAGE):
            begins.append(metadata.integer())
        else:
            metadata.skip(kind)
    return [begin for begin in begins if begin]  # some writers say 0 where there is no dictionary


class _Compact:
    """Reads values one after another. Raises ValueError where the bytes end, or are none that the protocol knows."""

    def __init__(self, content: bytes):
        self._content = content
        self._place = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and kind of each field of a struct; whoever asks reads or skips its value before the next."""
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 15

    def structs(self) -> Iterator[None]:
        """As many times as a list has structs; whoever asks reads one before the next."""
        size, kind = self._list_head()
        if kind != _STRUCT and size:
            raise ValueError(f"a list holds values of kind {kind}, must be structs")
        for _ in range(size):
            yield

    def integer(self) -> int:
        """A signed one of any width."""
        zigzag = self._varint()
        return zigzag >> 1 ^ -(zigzag & 1)

    def skip(self, kind: int, depth: int = 0) -> None:
        """Pass over the value of a field."""
        if depth > _DEEPEST:
            raise ValueError(f"values stand in values more than {_DEEPEST} deep")
        if kind in (_TRUE, _FALSE):
            return  # the kind is the value
        if kind in (_I16, _I32, _I64):
            self._varint()
        elif kind in (_BYTE, _DOUBLE):
            self._pass(1 if kind == _BYTE else 8)
        elif kind == _BINARY:
            self._pass(self._varint())
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind in (_LIST, _SET):
            size, inner = self._list_head()
            self._skip_elements(size, (inner,), depth + 1)
        elif kind == _MAP:
            if size := self._varint():
                kinds = self._byte()
                self._skip_elements(size, (kinds >> 4, kinds & 15), depth + 1)
        else:
            raise ValueError(f"a value of kind {kind}, which there is not")

    def _skip_elements(self, size: int, kinds: tuple[int, ...], depth: int) -> None:
        """In a collection a truth value takes a byte, so that every element takes one."""
        for _ in range(size):
            for kind in kinds:
                self.skip(_BYTE if kind in (_TRUE, _FALSE) else kind, depth)

    def _list_head(self) -> tuple[int, int]:
        head = self._byte()
        return head >> 4 if head >> 4 < 15 else self._varint(), head & 15

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift >= _BITS:
                raise ValueError("a number has more than 64 bits")
        return value | byte << shift

    def _byte(self) -> int:
        self._pass(1)
        return self._content[self._place - 1]

    def _pass(self, count: int) -> None:
        if count > len(self._content) - self._place:
            raise ValueError("the footer ends in the middle of a value")
        self._place += count

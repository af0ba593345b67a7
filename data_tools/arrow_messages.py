"""Where the messages of an Arrow stream lie, and a stream of some of them.

pyarrow passes over a record batch by reading it, or by mapping the file; and a mapped file that is cut meanwhile ends
the process. Here the head of each message is read, which tells its length, and of bodies those that are asked for.

Source: the streaming format of Arrow's columnar specification, Message.fbs of apache/arrow, and FlatBuffers' encoding.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

_CONTINUATION = 0xFFFFFFFF
_PREFIX_BYTES = 8  # the continuation and the length of the metadata
_RECORD_BATCH = 3  # among the kinds of a message's header
# Fields: of a message, of a record batch.
_HEADER_KIND, _HEADER, _BODY_BYTES = 1, 2, 3
_ROWS = 0


@dataclass(frozen=True)
class Message:
    """One message: bytes [start, stop) of the file; `rows` is None unless it is a record batch."""

    start: int
    stop: int
    rows: int | None


def messages(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file in order, without the end of the stream; no body is read.

    Raises:
        EOFError: the stream has no end, or the file more after it.
        ValueError: a message is not what Arrow describes.
    """
    size, start = os.fstat(stream.fileno()).st_size, 0
    while True:
        stream.seek(start)
        prefix = stream.read(_PREFIX_BYTES)
        if len(prefix) < _PREFIX_BYTES:
            raise EOFError("the stream has no end")
        mark, length = struct.unpack("<Ii", prefix)
        body = start + _PREFIX_BYTES + length
        if mark != _CONTINUATION or length < 0:
            raise ValueError(f"no message at byte {start}")
        if body > size:
            raise EOFError("the metadata of the last message is cut")
        if length == 0:
            if body != size:
                raise EOFError("more after the end of the stream")
            return
        metadata = _Table.root(stream.read(length))
        stop = body + metadata.number(_BODY_BYTES, "<q")
        if stop < body:
            raise ValueError(f"the message at byte {start} ends before it begins")
        if stop > size:
            raise EOFError("the body of the last message is cut")
        is_batch = metadata.number(_HEADER_KIND, "<B") == _RECORD_BATCH
        rows = metadata.table(_HEADER).number(_ROWS, "<q") if is_batch else None
        if rows is not None and rows < 0:
            raise ValueError(f"the record batch at byte {start} has {rows} rows")
        yield Message(start, stop, rows)
        start = stop


class SomeMessages(io.RawIOBase):
    """A readable stream of these messages, one after another, whatever lies between them in the file.

    A read never goes beyond the message that it begins in, and is short where the file has been cut meanwhile.
    """

    def __init__(self, stream: BinaryIO, wanted: Sequence[Message]):
        self._stream = stream
        self._left = [(message.start, message.stop) for message in reversed(wanted)]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        if not self._left:
            return 0
        start, stop = self._left.pop()
        self._stream.seek(start)
        count = self._stream.readinto(memoryview(buffer)[: stop - start])
        if count and start + count < stop:
            self._left.append((start + count, stop))
        return count


class _Table:
    """A table of FlatBuffers: fields by number, each at an offset that the table's directory tells."""

    def __init__(self, data: bytes, place: int):
        self._data = data
        self._place = place
        self._directory = place - self._value("<i", place)
        self._directory_bytes = self._value("<H", self._directory)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        return cls(data, _value(data, "<I", 0))

    def number(self, field: int, form: str) -> int:
        """A field's number; absent ones are 0."""
        place = self._field(field)
        return 0 if place is None else self._value(form, place)

    def table(self, field: int) -> _Table:
        place = self._field(field)
        if place is None:
            raise ValueError("a message without its header")
        return _Table(self._data, place + self._value("<I", place))

    def _field(self, field: int) -> int | None:
        entry = 4 + 2 * field  # behind the sizes of directory and table
        if entry + 2 > self._directory_bytes:
            return None
        offset = self._value("<H", self._directory + entry)
        return self._place + offset if offset else None

    def _value(self, form: str, place: int) -> int:
        return _value(self._data, form, place)


def _value(data: bytes, form: str, place: int) -> int:
    if not 0 <= place <= len(data) - struct.calcsize(form):
        raise ValueError("a message's metadata leads out of it")
    return struct.unpack_from(form, data, place)[0]

"""Arrays from one process to another, by memory that has no name.

The sender writes them into an anonymous file in memory (memfd) and sends its descriptor over a socket; the
receiver maps it, so that nothing is copied a second time. A message arrives whole or not at all, and
when the last process that knows the memory ends, however it ends, the system frees it.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from megatron_glm.data.flat_row import FlatRow

_MESSAGE = struct.Struct("<Bq")
_ALIGNMENT = 64  # bytes: a cache line, and enough for any vector instruction
_DTYPES = {4: np.int32, 8: np.int64}
_FIELDS = tuple(FlatRow.__dataclass_fields__)
_COLUMNS = {"segments": 3, "spans": 3}


class Kind(IntEnum):
    """What a message holds."""

    JOB = 0  # JSON, for the worker
    STEP = 1  # the rows of a step
    FAILURE = 2  # JSON: the error that the step ended with


@dataclass(frozen=True)
class Message:
    """A received message: its memory is mapped, and may be written."""

    kind: Kind
    first_sample: int
    memory: mmap.mmap

    def rows(self) -> list[FlatRow]:
        """The rows of a STEP, over the message's memory."""
        whole = np.frombuffer(self.memory, np.uint8)
        num_arrays = int(whole[:8].view(np.int64)[0])
        sizes = whole[8 : 8 + 16 * num_arrays].view(np.int64).reshape(-1, 2).tolist()
        arrays, offset = [], _aligned(8 + 16 * num_arrays)
        for (itemsize, length), name in zip(sizes, _FIELDS * (num_arrays // len(_FIELDS)), strict=True):
            values = whole[offset : offset + itemsize * length].view(_DTYPES[itemsize])
            arrays.append(values.reshape(-1, _COLUMNS[name]) if name in _COLUMNS else values)
            offset = _aligned(offset + itemsize * length)
        return [FlatRow(*arrays[i : i + len(_FIELDS)]) for i in range(0, num_arrays, len(_FIELDS))]

    def text(self) -> str:
        """The text of the other kinds."""
        return self.memory[:].decode()


def send_rows(connection: socket.socket, first_sample: int, rows: Sequence[FlatRow]) -> None:
    """Send the rows of a step: int32 and int64 arrays, whatever their number."""
    arrays = [np.ascontiguousarray(getattr(row, name)) for row in rows for name in _FIELDS]
    sizes = np.array([(array.itemsize, array.size) for array in arrays], np.int64)
    _send(connection, Kind.STEP, first_sample, [np.array([len(arrays)], np.int64).tobytes() + sizes.tobytes(), *arrays])


def send_text(connection: socket.socket, kind: Kind, first_sample: int, text: str) -> None:
    """Send a text that is not empty."""
    _send(connection, kind, first_sample, [text.encode()])


def receive(connection: socket.socket) -> Message | None:
    """The next message; None when the other side has ended."""
    try:
        header, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE.size, 1)
    except ConnectionResetError:
        return None
    if not descriptors:
        return None
    try:
        memory = mmap.mmap(descriptors[0], 0)
    finally:
        os.close(descriptors[0])
    kind, first_sample = _MESSAGE.unpack(header)
    return Message(Kind(kind), first_sample, memory)


def _send(connection: socket.socket, kind: Kind, first_sample: int, blocks: Sequence[bytes | np.ndarray]) -> None:
    descriptor = os.memfd_create(f"glm {kind.name.lower()}")
    try:
        with open(descriptor, "wb", closefd=False) as stream:
            for block in blocks:
                stream.write(block)
                if len(blocks) > 1:
                    stream.write(bytes(-stream.tell() % _ALIGNMENT))
        socket.send_fds(connection, [_MESSAGE.pack(kind, first_sample)], [descriptor])
    finally:
        os.close(descriptor)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT

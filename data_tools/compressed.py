"""Byte streams of gzip and Zstandard files that notice when the file is cut.

zstandard's own stream_reader returns nothing, without an error, for a truncated frame: a corpus
would lose its end in silence. Here the end of the file must be the end of a frame.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import zstandard

from megatron_glm.errors import DataError

_READ_BYTES = 1 << 16
_LARGEST_WINDOW = 1 << 31  # files packed with `zstd --long=31` are common among corpora


def gzip_lines(raw: BinaryIO, path: str) -> Iterator[bytes]:
    """Lines of all members of a gzip file.

    Raises:
        DataError: the file is truncated or damaged.
    """
    try:
        yield from gzip.GzipFile(fileobj=raw, mode="rb")
    except EOFError as error:
        raise _truncated(path) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a whole gzip file ({error}); fetch it again") from error


def zstd_lines(raw: BinaryIO, path: str) -> Iterator[bytes]:
    """Lines of all frames of a Zstandard file.

    Raises:
        DataError: the file is truncated or damaged.
    """
    yield from io.BufferedReader(_ZstdStream(raw, path), _READ_BYTES)


class _ZstdStream(io.RawIOBase):
    """The decompressed bytes of a sequence of frames."""

    def __init__(self, raw: BinaryIO, path: str):
        self._raw, self._path = raw, path
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while not self._ready:
            block = self._next_block()
            if block is None:
                return 0
            self._ready = memoryview(block)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _next_block(self) -> bytes | None:
        packed = self._packed or self._raw.read(_READ_BYTES)
        self._packed = b""
        if not packed:
            if self._frame is not None:
                raise _truncated(self._path)
            return None
        self._frame = self._frame or self._decompressor.decompressobj()
        try:
            block = self._frame.decompress(packed)
        except zstandard.ZstdError as error:
            raise DataError(f"{self._path}: not a whole Zstandard file ({error}); fetch it again") from error
        if self._frame.eof:
            self._packed, self._frame = self._frame.unused_data, None
        return block


def _truncated(path: str) -> DataError:
    return DataError(f"{path}: truncated: the compressed data stop before their end; fetch the file again")

"""Byte streams of gzip and Zstandard files that notice when the file is cut.

zstandard's own stream_reader returns nothing, without an error, for a truncated frame: a corpus
would lose its end in silence. Here the end of the file must be the end of a frame.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import zstandard

from megatron_glm.errors import DataError

_READ_BYTES = 1 << 16
_UNPACKED_AT_ONCE = 1 << 11  # packed bytes: four of them may stand for 128 KB, all held twice before any is passed on
_LARGEST_WINDOW = 1 << 31  # files packed with `zstd --long=31` are common among corpora
_GZIP_WINDOW = 31  # 15 bits, and 16 for a gzip header with its checksum


@dataclass(frozen=True)
class _Format:
    """How one frame (gzip: member) is unpacked, and which bytes may fill the room between two."""

    name: str
    new_frame: Callable[[], Any]
    error: type[Exception]
    padding: bytes


_GZIP = _Format("gzip", lambda: zlib.decompressobj(_GZIP_WINDOW), zlib.error, b"\0")  # as gzip(1) allows
_ZSTD = _Format(
    "Zstandard",
    lambda: zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj(),
    zstandard.ZstdError,
    b"",
)


def gzip_stream(raw: BinaryIO, path: str) -> io.BufferedReader:
    """The bytes of all members of a gzip file; reading raises DataError where it is truncated or damaged."""
    return io.BufferedReader(_FrameStream(raw, path, _GZIP), _READ_BYTES)


def zstd_stream(raw: BinaryIO, path: str) -> io.BufferedReader:
    """The bytes of all frames of a Zstandard file; reading raises DataError where it is truncated or damaged."""
    return io.BufferedReader(_FrameStream(raw, path, _ZSTD), _READ_BYTES)


class _FrameStream(io.RawIOBase):
    """The decompressed bytes of a sequence of frames."""

    def __init__(self, raw: BinaryIO, path: str, frames: _Format):
        self._raw, self._path, self._format = raw, path, frames
        self._frame: Any = None
        self._any_frame = False
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
        packed = self._packed or self._raw.read(_UNPACKED_AT_ONCE)
        self._packed = b""
        if not packed:
            if self._frame is not None:
                raise DataError(
                    f"{self._path}: truncated: the compressed data stop before their end; fetch the file again"
                )
            return None
        if self._frame is None:
            if self._any_frame:  # a file of nothing but padding is what a crash leaves, and no empty corpus
                packed = packed.lstrip(self._format.padding)
                if not packed:
                    return b""
            self._frame, self._any_frame = self._format.new_frame(), True
        try:
            block = self._frame.decompress(packed)
        except self._format.error as error:
            raise DataError(f"{self._path}: not a whole {self._format.name} file ({error}); fetch it again") from error
        if self._frame.eof:
            self._packed, self._frame = self._frame.unused_data, None
        return block

"""The bytes of a part of an input, hashed on the way to whoever reads them.

What was read is what the manifest says was read, and a part of a large input is read once.
"""

from __future__ import annotations

from io import BufferedReader, FileIO, RawIOBase

from xxhash import xxh3_128

from data_tools.inputs import Range
from megatron_glm.errors import DataError

READ_BYTES = 1 << 20  # at once: with the 8 KiB of `open` a long line is put together from many pieces


class PartStream(RawIOBase):
    """Reads the bytes of the file that a part has, and no others.

    Attributes:
        position: bytes that were read so far.

    Raises:
        DataError: on a read, the file ends before the part does.
    """

    def __init__(self, part: Range):
        first, end = part.extent or (part.start, part.stop)
        self._path, self._raw, self._digest = part.input.path, FileIO(part.input.path), xxh3_128()
        self._raw.seek(first)
        self._left = end - first
        self.position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        view = memoryview(buffer)[: self._left]
        count = self._raw.readinto(view)
        if self._left and len(view) and not count:
            raise DataError(f"{self._path}: was cut while it was read, {self._left} bytes are missing; fetch it again")
        self._digest.update(view[:count])
        self._left -= count
        self.position += count
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()

    def checksum(self) -> str:
        """XXH3-128 of what was read, in hexadecimal."""
        return self._digest.hexdigest()


def checksum_of_part(part: Range) -> str:
    """XXH3-128 of the bytes of the file that the part has, in hexadecimal: tells a changed input, fast.

    Raises:
        DataError: the file ends before the part does.
    """
    with PartStream(part) as stream:
        buffer = bytearray(READ_BYTES)
        while stream.readinto(buffer):
            pass
        return stream.checksum()


def buffered(stream: PartStream) -> BufferedReader:
    """The lines of a part."""
    return BufferedReader(stream, READ_BYTES)

"""Arrays in a file, read where they are asked for.

A map of a file that another process cuts kills the reader by SIGBUS, and so does an error of a network
file system. Reads at a place return what there is, so a short one is an error that can be told. The
blocks in which single entries were found are kept, so that a binary search costs what it costs in a map.
"""

from __future__ import annotations

import os
import weakref
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from megatron_glm.errors import DataError

_BLOCK_BYTES = 4096
_KEPT_BLOCKS = 64  # of an array, hence 256 KB; the upper levels of a binary search stay among them


class ReadOnlyFile:
    """A file open for reading at any place, by any thread; it is closed with the object.

    Attributes:
        size: bytes when it was opened.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path):
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, start: int, size: int) -> bytes:
        """The bytes [start, start + size).

        Raises:
            DataError: the file has become shorter, or the disk fails.
        """
        try:
            data = os.pread(self._descriptor, size, start)
            while len(data) < size:  # Linux reads at most 2 GB at a time
                more = os.pread(self._descriptor, size - len(data), start + len(data))
                if not more:
                    break
                data += more
            end = os.fstat(self._descriptor).st_size if len(data) < size else None
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read at byte {start}: {error.strerror}") from error
        if end is not None:
            raise DataError(
                f"{self.path}: ends at byte {end}, but had {self.size} when it was opened; "
                "was it cut or written anew meanwhile? copy the data again and restart"
            )
        return data


class FileArray:
    """`length` numbers of a file that begin at byte `start`.

    What is read is a copy, or lies in memory of its own: it outlives the file.

    Raises, on every read:
        DataError: as `ReadOnlyFile.read`.
    """

    def __init__(self, file: ReadOnlyFile, start: int, length: int, dtype: np.dtype | str):
        self._file, self._start, self._length = file, start, length
        self.dtype = np.dtype(dtype)
        self._block_entries = _BLOCK_BYTES // self.dtype.itemsize
        # Of a function that does not know the object: a cycle would keep the file open after its last use.
        self._block = lru_cache(_KEPT_BLOCKS)(partial(_read_block, file, start, length, self.dtype))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        """One entry; a negative index counts from the end."""
        if not 0 <= index < self._length:
            index += self._length
            if not 0 <= index < self._length:
                raise IndexError(f"entry {index - self._length} lies outside an array of {self._length}")
        return self._block(index // self._block_entries).item(index % self._block_entries)

    def read(self, start: int, stop: int) -> np.ndarray:
        """The entries [start, stop), not writable; stop is cut to the length."""
        return _read(self._file, self._start, self.dtype, start, min(stop, self._length))

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Entries at places that had best be in order: int64 [k] -> [k]."""
        blocks = indices // self._block_entries
        cuts = (np.flatnonzero(np.diff(blocks)) + 1).tolist()
        taken = np.empty(len(indices), self.dtype)
        for start, stop in pairwise([0, *cuts, len(indices)] if len(indices) else []):
            first = int(blocks[start]) * self._block_entries
            taken[start:stop] = self.read(first, first + self._block_entries)[indices[start:stop] - first]
        return taken


def _read_block(file: ReadOnlyFile, start: int, length: int, dtype: np.dtype, block: int) -> np.ndarray:
    entries = _BLOCK_BYTES // dtype.itemsize
    return _read(file, start, dtype, block * entries, min((block + 1) * entries, length))


def _read(file: ReadOnlyFile, place: int, dtype: np.dtype, start: int, stop: int) -> np.ndarray:
    size = max(stop - start, 0) * dtype.itemsize
    return np.frombuffer(file.read(place + start * dtype.itemsize, size), dtype)

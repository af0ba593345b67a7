"""Files whose flushing to the disk goes on behind the work, so that a process waits once and not for each.

A unit writes half a dozen small files, and a disk takes a millisecond or more to confirm one. Of a large file
the disk gets parts while it is written, so that little is left to wait for at its end.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from megatron_glm.files import Files

_AT_ONCE = 8
_MOST_PENDING = 32  # each holds a descriptor
_PART_BYTES = 1 << 23


class BackgroundSync(Files):
    """Begins what `sync` and `sync_directory` ask for; all of it is on the disk when the block has ended well.

    Raises:
        OSError: when the block ends, or earlier, the disk has failed or is full.
    """

    def __enter__(self) -> BackgroundSync:
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self._pending: deque[Future[None]] = deque()
        self._unsynced: dict[BinaryIO, int] = {}  # bytes that were written since the last flush
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._pool.shutdown()
        if kind is None:
            for future in self._pending:
                future.result()

    def write(self, stream: BinaryIO, data: bytes | memoryview) -> None:
        super().write(stream, data)
        self._unsynced[stream] = self._unsynced.get(stream, 0) + memoryview(data).nbytes
        if self._unsynced[stream] >= _PART_BYTES:
            self.sync(stream)

    def sync(self, stream: BinaryIO) -> None:
        stream.flush()
        self._unsynced.pop(stream, None)
        self._begin(_sync_and_close, os.dup(stream.fileno()))  # the caller may close its own

    def sync_directory(self, path: Path) -> None:
        self._begin(super().sync_directory, path)

    def _begin(self, sync: Callable[..., None], *arguments: Any) -> None:
        self._pending.append(self._pool.submit(sync, *arguments))
        if len(self._pending) > _MOST_PENDING:
            self._pending.popleft().result()


def _sync_and_close(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):  # Linux
            # Nobody reads it soon: its memory goes to what is written next, before the kernel has to look for some.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)

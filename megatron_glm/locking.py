"""One writer at a time: a lock that ends with its process, however that ends.

A mark that a writer leaves and removes again would stay behind a killed one, and no age tells a slow
writer from a dead one. The system drops a file lock with the process that holds it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock on the file `path`, which is made for it and removed when the block ends.

    The file may be there already, left by a process that was killed: it then locks nothing.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file cannot be made, or the file system has no locks.
    """
    descriptor = _lock(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock is given back: no one else can hold this file yet
        os.close(descriptor)


def _lock(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # NFS locks only what is open for writing
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file_at(descriptor, path):
                return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            raise BlockingIOError(errno.EAGAIN, "another process is writing here", str(path)) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder has removed it since we opened it: the lock is of no file


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False

"""One writer at a time: a lock that ends with its process, however that ends.

A mark that a writer leaves and removes again would stay behind a killed one, and no age tells a slow
writer from a dead one. The system drops a file lock with the process that holds it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

_LONGEST_HOLDER = 400  # characters that are shown of what the file says


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock on the file `path`, which is made for it and removed when the block ends.

    The file may be there already, left by a process that was killed: it then locks nothing. It tells who holds it.

    Raises:
        BlockingIOError: another process holds the lock; names it.
        OSError: the file cannot be made, or the file system has no locks.
    """
    descriptor = _lock(path)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {_now()}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock is given back: no one else can hold this file yet
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock on a file; a file that cannot be opened is held by none."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder_of(path: Path) -> str:
    """Who says that they hold the lock on a file: 'process 17 on host1 since 2026-11-30T03:00:00+00:00'."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:_LONGEST_HOLDER] or "unknown"
    except OSError:  # it has just been given back
        return "unknown"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _lock(path: Path) -> int:
    while True:
        # NFS locks only what is open for writing. A link would have what it leads to truncated.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file_at(descriptor, path):
                return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            reason = f"another process is writing here: {holder_of(path)}"
            raise BlockingIOError(errno.EAGAIN, reason, str(path)) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder has removed it since we opened it: the lock is of no file


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False

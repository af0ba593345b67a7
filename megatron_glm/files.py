"""Writing files that are whole or not there.

Everything that a crash must not leave half-written goes through this layer: a file or a directory
is written under a temporary name beside its place, flushed to the disk, and renamed. Tests replace
`Files` by one that counts the operations or fails at the k-th.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from megatron_glm.locking import exclusive

_COPY_BYTES = 1 << 20
TEMPORARY_SUFFIX = ".tmp"
LOCK_SUFFIX = ".lock"


class Files:
    """The file operations of the publish protocol, one method each."""

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True)

    def open(self, path: Path) -> BinaryIO:
        """A new file for writing; an existing one is an error, so nothing is overwritten by accident."""
        return open(path, "xb")

    def write(self, stream: BinaryIO, data: bytes | memoryview) -> None:
        stream.write(data)

    def sync(self, stream: BinaryIO) -> None:
        stream.flush()
        os.fsync(stream.fileno())

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def remove_tree(self, path: Path) -> None:
        """A directory and all below it, file by file, so that each step is an operation of its own.

        Of a link the link alone goes: what it leads to may be anybody's.
        """
        if path.is_symlink():
            self.unlink(path)
            return
        for parent, directories, names in os.walk(path, topdown=False):
            for name in names:
                self.unlink(Path(parent, name))
            for name in directories:
                child = Path(parent, name)
                (self.unlink if child.is_symlink() else self.remove_directory)(child)
        self.remove_directory(path)


def temporary_name(path: Path) -> Path:
    """The name under which `path` is written before it is published."""
    return path.with_name(f".{path.name}{TEMPORARY_SUFFIX}")


@contextmanager
def atomic_file(path: Path, files: Files | None = None) -> Iterator[BinaryIO]:
    """A stream whose content appears under `path` when the block ends well, and not at all when it fails."""
    files = files or Files()
    temporary = temporary_name(path)
    if temporary.exists() or temporary.is_symlink():  # left by a process that was killed
        files.unlink(temporary)
    stream = files.open(temporary)
    try:
        with stream:
            yield stream
            files.sync(stream)
        files.rename(temporary, path)
        files.sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):  # the first failure is the one to report
            if temporary.exists():
                files.unlink(temporary)
        raise


@contextmanager
def atomic_directory(
    path: Path, files: Files | None = None, *, keeps: Callable[[BaseException], bool] | None = None
) -> Iterator[Path]:
    """A temporary directory that becomes `path` when the block ends well, and is removed when it fails.

    One process at a time: it holds a lock beside `path`, and a temporary directory that no one holds was left
    by a process that was killed, so it is removed.

    Args:
        keeps: whether the temporary directory stays after this failure. If given, a directory that was left is
            not removed but found in the block as it is, to be continued.

    Raises:
        FileExistsError: `path` is there and not empty.
        BlockingIOError: another process is writing it.
    """
    files = files or Files()
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(path.with_name(f".{path.name}{LOCK_SUFFIX}")), _published(path, files, keeps) as temporary:
        yield temporary


@contextmanager
def _published(path: Path, files: Files, keeps: Callable[[BaseException], bool] | None) -> Iterator[Path]:
    if path.is_dir() and not any(path.iterdir()):
        files.remove_directory(path)
    if path.exists():
        raise FileExistsError(f"{path} exists already")
    temporary = temporary_name(path)
    if temporary.is_symlink() or (temporary.exists() and keeps is None):
        files.remove_tree(temporary)
    if not temporary.exists():
        files.make_directory(temporary)
    try:
        yield temporary
        files.sync_directory(temporary)
        files.rename(temporary, path)
        files.sync_directory(path.parent)
    except BaseException as error:
        with suppress(OSError):
            if temporary.exists() and not (keeps and keeps(error)):
                files.remove_tree(temporary)
        raise


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(_COPY_BYTES):
            digest.update(block)
    return digest.hexdigest()

"""What is flushed behind the work is on the disk when the block ends, and a failure is told."""

import errno
import os
import threading

import pytest

from data_tools.background_sync import _MOST_PENDING, _PART_BYTES, BackgroundSync
from megatron_glm.files import atomic_file


@pytest.fixture
def synced(monkeypatch):
    """The inodes that were flushed; each takes a moment."""
    inodes, fsync = [], os.fsync

    def slow(descriptor):
        threading.Event().wait(0.01)
        fsync(descriptor)
        inodes.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", slow)
    return inodes


def test_everything_is_flushed_when_the_block_ends(tmp_path, synced):
    with BackgroundSync() as files:
        for number in range(2 * _MOST_PENDING):
            with atomic_file(tmp_path / str(number), files) as stream:
                files.write(stream, b"content")
    written = {path.stat().st_ino for path in tmp_path.iterdir()}
    assert len(written) == 2 * _MOST_PENDING
    assert written | {tmp_path.stat().st_ino} == set(synced)
    assert all(path.read_bytes() == b"content" for path in tmp_path.iterdir())


def test_of_a_large_file_parts_are_flushed_while_it_is_written(tmp_path, synced):
    with BackgroundSync() as files, files.open(tmp_path / "a") as stream:
        for _ in range(4):
            files.write(stream, bytes(_PART_BYTES // 2))
        files._pool.shutdown()
        assert len(synced) == 2
        assert (tmp_path / "a").stat().st_size == 2 * _PART_BYTES


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="Linux")
def test_what_is_on_the_disk_leaves_the_memory(tmp_path, synced, monkeypatch):
    left = []

    def leave(descriptor, first, count, advice):
        inode = os.fstat(descriptor).st_ino
        assert (first, count, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        assert inode in synced  # before that it would do nothing
        left.append(inode)

    monkeypatch.setattr(os, "posix_fadvise", leave)
    with BackgroundSync() as files, files.open(tmp_path / "a") as stream:
        files.write(stream, b"content")
        files.sync(stream)
    assert left == [(tmp_path / "a").stat().st_ino]


def test_no_descriptor_stays_open(tmp_path, synced):
    before = len(os.listdir("/proc/self/fd"))
    with BackgroundSync() as files, files.open(tmp_path / "a") as stream:
        files.sync(stream)
    assert len(os.listdir("/proc/self/fd")) == before


def test_waits_overlap(tmp_path, monkeypatch):
    both = threading.Barrier(2)  # passed only if two flushes are under way at a time
    monkeypatch.setattr(os, "fsync", lambda descriptor: both.wait(timeout=10))
    with BackgroundSync() as files:
        for name in "ab":
            with files.open(tmp_path / name) as stream:
                files.sync(stream)


@pytest.fixture
def broken_disk(monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)


def write(directory, number, error=None):
    """Write so many files, and raise then."""
    with BackgroundSync() as files:
        for name in range(number):
            with files.open(directory / str(name)) as stream:
                files.sync(stream)
        if error:
            raise error


@pytest.mark.parametrize("number", [1, _MOST_PENDING + 2])
def test_a_disk_that_fails_is_told(tmp_path, broken_disk, number):
    with pytest.raises(OSError, match="Input/output error"):
        write(tmp_path, number)


def test_an_error_of_the_block_is_the_one_that_is_told(tmp_path, broken_disk):
    with pytest.raises(ZeroDivisionError):
        write(tmp_path, 1, ZeroDivisionError())

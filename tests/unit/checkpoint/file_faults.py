"""File layers that kill, lose power or find the disk full at a chosen operation."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from megatron_glm.files import Files

OPERATIONS = ("make_directory", "open", "write", "sync", "sync_directory", "rename", "unlink", "remove_directory")

DEAD = 9  # exit code of a process that was told to die
NEVER = 10**6


class WatchedFiles(Files):
    """Calls `before(self, number, name, arguments)` before each operation; numbers count from 0."""

    def __init__(self, before: Callable):
        self._before = before
        self.log: list[tuple] = []

    def __getattribute__(self, name):
        method = super().__getattribute__(name)
        if name not in OPERATIONS:
            return method

        def operation(*arguments):
            self.log.append((name, *arguments))
            self._before(self, len(self.log) - 1, name, arguments)
            return method(*arguments)

        return operation


def dies_at(k: int) -> WatchedFiles:
    """The process is gone before operation k, or in the middle of it, if it is a write."""

    def before(files, number, name, arguments):
        if number == k:
            if name == "write":
                stream, data = arguments
                stream.write(data[: len(data) // 2])
                stream.flush()
            os._exit(DEAD)

    return WatchedFiles(before)


def full_at(k: int) -> WatchedFiles:
    """Operation k finds no space; all others work."""

    def before(files, number, name, arguments):
        if number == k:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return WatchedFiles(before)


class PowerLoss(BaseException):
    """Nothing that runs after this reaches the disk."""


class LosesPower(WatchedFiles):
    """Power fails before operation k; `settle` then leaves what the disk has kept.

    A directory entry is kept for certain once its directory was synced, content once its file was.
    What was not synced may be lost or kept, entry and content each by itself: `keep_entries` and
    `keep_content` choose the four corners.
    """

    def __init__(self, k: int, *, keep_entries: bool, keep_content: bool):
        super().__init__(type(self)._record)
        self._k, self._keep_entries, self._keep_content = k, keep_entries, keep_content
        self._unsynced_content: dict[Path, None] = {}
        self._unsynced_entries: list[tuple[str, Path, Path | None]] = []

    def _record(self, number, name, arguments):
        if number >= self._k:
            raise PowerLoss
        if name == "open":
            self._unsynced_content[arguments[0]] = None
            self._unsynced_entries.append(("create", arguments[0], None))
        elif name == "make_directory":
            self._unsynced_entries.append(("create", arguments[0], None))
        elif name == "rename":
            source, target = arguments
            self._unsynced_entries.append(("rename", source, target))
            self._move(source, target)
        elif name == "sync":
            self._unsynced_content.pop(Path(arguments[0].name), None)
        elif name == "sync_directory":
            self._unsynced_entries = [entry for entry in self._unsynced_entries if entry[1].parent != arguments[0]]

    def settle(self) -> None:
        if not self._keep_content:
            for path in self._unsynced_content:
                if path.exists():
                    os.truncate(path, path.stat().st_size // 2)
        for kind, path, target in [] if self._keep_entries else reversed(self._unsynced_entries):
            if kind == "rename" and target.exists():
                target.rename(path)
                self._move(target, path)
            elif kind == "create" and path.is_dir():
                Files().remove_tree(path)
            elif kind == "create" and path.exists():
                path.unlink()

    def _move(self, source: Path, target: Path) -> None:
        def moved(path: Path) -> Path:
            return target / path.relative_to(source) if path.is_relative_to(source) else path

        self._unsynced_content = dict.fromkeys(map(moved, self._unsynced_content))
        self._unsynced_entries = [
            (kind, moved(path) if kind == "create" else path, other) for kind, path, other in self._unsynced_entries
        ]

"""A process and all it has started: who they are, and the memory they hold together."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_PROC = Path("/proc")
_SAMPLE_SECONDS = 0.2


def tree(root: int) -> list[int]:
    """`root` and its living descendants, each after the one that started it."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if entry.name.isdecimal():
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def is_alive(process: int) -> bool:
    """Whether the process runs; one that has ended and waits to be reaped does not."""
    try:
        return (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def proportional_bytes(root: int) -> int:
    """Memory of the tree; a page that n processes share counts 1/n in each (PSS)."""
    total = 0
    for process in tree(root):
        with suppress(OSError):
            lines = (_PROC / str(process) / "smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


class PeakMemory:
    """The largest `proportional_bytes` of a tree while the block runs, looked at five times a second."""

    def __init__(self, root: int):
        self.bytes = 0
        self._root = root
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLE_SECONDS):
            self.bytes = max(self.bytes, proportional_bytes(self._root))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

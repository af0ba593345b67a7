"""The slow tests in slices, of which every commit runs another, as far as its time goes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

SLICES = 6

T = TypeVar("T")


def slice_of(items: Sequence[T], commit: str) -> list[T]:
    """Every sixth of the items: the commit's hash, in hexadecimal digits, tells which, and with which it begins.

    The beginning changes too, so that over the commits each item has its turn even if a slice is never finished.
    """
    number = int(commit, 16)
    chosen = list(items[number % SLICES :: SLICES])
    start = number // SLICES % len(chosen) if chosen else 0
    return chosen[start:] + chosen[:start]


class SlicePlugin:
    """Runs the slice of a commit, and starts no more of it when the time is up; that is no failure.

    Args:
        minutes: from now on; None: as long as it takes.
        clock: seconds.
    """

    def __init__(self, commit: str, minutes: float | None = None, clock: Callable[[], float] = time.monotonic):
        self._commit, self._minutes, self._clock = commit, minutes, clock
        self._deadline = math.inf if minutes is None else clock() + 60 * minutes
        self._asked = self._left = 0

    @pytest.hookimpl(trylast=True)  # -m and -k have made their choice
    def pytest_collection_modifyitems(self, config, items):
        slow = [item for item in items if item.get_closest_marker("slow")]
        chosen = slice_of(slow, self._commit)
        config.hook.pytest_deselected(items=[item for item in slow if item not in chosen])
        items[:] = [item for item in items if item not in slow] + chosen
        self._asked = len(items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self):
        if self._clock() < self._deadline:
            return None
        self._left += 1
        return True  # done with: nobody runs it

    def pytest_terminal_summary(self, terminalreporter):
        which = f"slice {int(self._commit, 16) % SLICES + 1} of {SLICES}"
        told = f"{which}: {self._asked - self._left} of {self._asked} tests ran"
        if self._left:
            told += f"; the {self._minutes:g} minutes are up, {self._left} are left to other commits"
        terminalreporter.write_line(told)

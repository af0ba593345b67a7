"""A run that makes no progress says where every rank stands, and ends.

All ranks leave the agreement at the start of a step together, so their clocks agree without being told, and each
writes its own stacks within a second of the others'. Two threads watch: one of Python's, which can say a sentence
and choose the exit code, and one of C's, for a rank that never gives back Python's lock.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from megatron_glm.command import tell

STACKS = "stacks"
_LOOK_SECONDS = 1.0
_OTHERS_SECONDS = 3.0  # until the other ranks have written their stacks: a launcher ends them all with the first
_PATIENCE = 10.0  # how much longer a start, the first step and a save may take
_HELD_LOCK = 1.5  # after so many times the limit the lock is held: Python's thread would have ended the process


class Watchdog:
    """Ends this process when `mark` is not called for too long.

    Args:
        seconds: the limit between two steps, or two batches of a validation; None: no watch.
        directory: where `rank_N.txt` is written.
        end: called with the exit code.

    Attributes:
        doing: what this rank is at, for the message.
    """

    def __init__(
        self,
        seconds: float | None,
        *,
        rank: int,
        directory: Path,
        exit_code: int,
        end: Callable[[int], object] = os._exit,
    ):
        self.doing = "the start"
        self._seconds = seconds
        self._rank = rank
        self._path = directory / f"rank_{rank}.txt"
        self._exit_code = exit_code
        self._end = end
        self._patience = _PATIENCE
        self._last = time.monotonic()
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        if self._seconds is None:
            return self
        # Opened now: when stacks are to be written, the file system may be what hangs.
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._stream = open(self._path, "a", encoding="utf-8")  # what made the last start hang may be wanted
        except OSError:
            self._stream = open(os.devnull, "w", encoding="utf-8")
        self._arm()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._seconds is None:
            return
        self._closed.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        self._stream.close()
        with suppress(OSError):
            if self._path.stat().st_size == 0:
                self._path.unlink()
                self._path.parent.rmdir()  # the last rank's

    def mark(self) -> None:
        """Progress: called by all ranks at the same moment."""
        self._last = time.monotonic()
        if self._seconds is not None:
            self._arm()

    def settle(self) -> None:
        """The first step has ended: from now on the limit holds as it is."""
        self._patience = 1.0

    @contextmanager
    def patient(self, doing: str) -> Iterator[None]:
        """A block that may take ten times as long; it ends in progress."""
        before, self._patience = self._patience, _PATIENCE
        doing_before, self.doing = self.doing, doing
        self.mark()
        try:
            yield
        finally:
            self._patience, self.doing = before, doing_before
            self.mark()

    def _arm(self) -> None:
        limit = self._seconds * self._patience * _HELD_LOCK + _LOOK_SECONDS + _OTHERS_SECONDS
        faulthandler.dump_traceback_later(limit, file=self._stream, exit=True)

    def _watch(self) -> None:
        while not self._closed.wait(min(_LOOK_SECONDS, self._seconds / 4)):
            limit = self._seconds * self._patience
            if time.monotonic() - self._last > limit:
                self._report(limit)
                self._closed.wait(_OTHERS_SECONDS)
                self._end(self._exit_code)
                return

    def _report(self, limit: float) -> None:
        place = f"rank {self._rank} on {socket.gethostname()}"
        line = f"{place}: no progress for {limit:g} s, in {self.doing}"
        with suppress(OSError):
            print(f"{line}, pid {os.getpid()}, {time.strftime('%Y-%m-%d %H:%M:%S')}", file=self._stream, flush=True)
            faulthandler.dump_traceback(file=self._stream, all_threads=True)
        tell(f"error: {line}; see {self._path}", stream=sys.stderr)

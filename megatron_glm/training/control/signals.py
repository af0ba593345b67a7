"""Signals that ask a run to stop: the first is a wish, one that comes later stops at once.

A Python handler runs in the main thread, and not before the call that it is in returns: a rank that waits for
others in a collective would never get to it. So the handlers do nothing, and a thread reads the numbers that the
interpreter's own handler, which runs at once, writes into a pipe.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from megatron_glm.command import tell

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SAME_SECONDS = 5.0  # Ctrl-C reaches a process from the terminal, from its launcher, and from what started that
_FATAL = 128  # the shell's way to say which signal ended a process


class StopSignals:
    """Takes SIGTERM, SIGINT and SIGUSR1 while its block runs; the main thread must enter it.

    Args:
        stop_at_once: called with the exit code, 128 + the signal's number, by a signal that comes more than
            `SAME_SECONDS` after the first.
    """

    def __init__(self, *, stop_at_once: Callable[[int], object] = os._exit):
        self._first: signal.Signals | None = None
        self._first_time = 0.0
        self._stop_at_once = stop_at_once
        self._reading = threading.Lock()

    @property
    def received(self) -> str | None:
        """Name of the first signal, if one has come."""
        self._read()  # the thread may not have had its turn since
        return self._first and self._first.name

    def __enter__(self) -> Self:
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        self._handlers = {number: signal.signal(number, _do_nothing) for number in STOP_SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._write_end)
        self._thread.join()
        os.close(self._read_end)

    def _listen(self) -> None:
        while True:
            select.select([self._read_end], [], [])
            if not self._read():
                return

    def _read(self) -> bool:
        """Take what is in the pipe; whether more may come."""
        with self._reading:
            try:
                numbers = os.read(self._read_end, 64)
            except BlockingIOError:
                return True
            for number in numbers:
                if number in STOP_SIGNALS:  # the pipe tells of every signal that has a handler
                    self._take(signal.Signals(number))
            return bool(numbers)

    def _take(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first, self._first_time = number, now
        elif now - self._first_time > SAME_SECONDS:
            tell(f"stopped at once by {number.name}, a second signal", stream=sys.stderr)
            self._stop_at_once(_FATAL + number)


def _do_nothing(number: int, frame: object) -> None:
    pass

"""Which rank the others wait for: each rank's time outside collectives, compared over the ranks.

A rank that computes slowly makes all wait in the next collective, so that all steps take as long everywhere. What
differs is where the time goes. A thread looks twenty times a second at what the main thread is in: torch's and
DeepSpeed's collectives are known by their files. That costs no call in any step, and knows every layout.

A collective of GPUs returns at once; where its result is needed, the host waits for it, and for all before it in the
GPU's queue. In a step that is where counts and losses are summed: in exact_loss.py, which does nothing else.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, TracebackType
from typing import Any, Self

_LOOK_SECONDS = 0.05
_LEAST_LOOKS = 20  # of an interval that is judged: fewer tell nothing
_COLLECTIVES = tuple(
    os.path.join(*parts)
    for parts in (
        ("torch", "distributed"),
        ("deepspeed", "comm"),
        ("megatron_glm", "training", "engines", "exact_loss.py"),
    )
)


class BusyClock:
    """Seconds that the main thread spends outside collectives while the block runs."""

    def __init__(self) -> None:
        self._busy = self._looks = 0.0
        self._paused = False
        self._known: dict[CodeType, bool] = {}
        self._closed = threading.Event()
        self._main = threading.main_thread().ident
        self._thread = threading.Thread(target=self._sample, name="busy clock", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()

    def take(self) -> tuple[float, int]:
        """Busy seconds and looks since the last call."""
        taken, self._busy, self._looks = (self._busy, int(self._looks)), 0.0, 0
        return taken

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block that is no part of a step: one rank may have more to do in it than the others."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def _sample(self) -> None:
        last = time.perf_counter()
        while not self._closed.wait(_LOOK_SECONDS):
            now = time.perf_counter()
            if not self._paused:
                self._looks += 1
                if not self._waits():
                    self._busy += now - last
            last = now

    def _waits(self) -> bool:
        frame = sys._current_frames().get(self._main)
        while frame is not None:
            if self._is_collective(frame.f_code):
                return True
            frame = frame.f_back
        return False

    def _is_collective(self, code: CodeType) -> bool:
        if code not in self._known:
            self._known[code] = any(place in code.co_filename for place in _COLLECTIVES)
        return self._known[code]


def here(clock: BusyClock) -> list[Any]:
    """What a rank tells the others at the end of an interval: busy seconds, looks, its machine."""
    return [*clock.take(), socket.gethostname()]


def compare(told: Sequence[Sequence[Any]], *, steps: int, factor: float) -> Mapping[str, Any] | None:
    """The slowest rank, where it is slower than the median rank by the factor; None where no rank is.

    Args:
        told: `here` of every rank, by rank.
        steps: of the interval.
        factor: of the lower median, which with two ranks is the faster one.
    """
    busy = [float(seconds) for seconds, _, _ in told]
    rank = max(range(len(busy)), key=busy.__getitem__)
    median = sorted(busy)[(len(busy) - 1) // 2]
    if len(busy) < 2 or min(looks for _, looks, _ in told) < _LEAST_LOOKS or busy[rank] <= factor * median:
        return None
    return {
        "rank": rank,
        "host": told[rank][2],
        "busy_seconds_per_step": busy[rank] / steps,
        "median_busy_seconds_per_step": median / steps,
    }

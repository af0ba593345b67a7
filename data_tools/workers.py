"""Processes that do units of work, and what happens when one of them fails, dies or is orphaned."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import FrameType
from typing import Any

from megatron_glm.errors import DataError

_TICK_SECONDS = 0.5


class ResumableError(DataError):
    """A failure after which what is finished is kept, and the same command continues."""


def available_cores() -> int:
    """Cores this process may use: a batch system grants fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def interrupted_by_termination() -> Iterator[None]:
    """SIGTERM, by which batch systems end a job, raises KeyboardInterrupt in the block; for the main thread."""

    def interrupt(signal_number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def make_executor(workers: int) -> Executor:
    """Worker processes; a single worker is a thread, which starts at once."""
    if workers == 1:
        return ThreadPoolExecutor(1)
    # Spawn, because a tokenizer's threads do not survive a fork.
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_start_worker)


def run_all(
    executor: Executor,
    tasks: Iterable[tuple[Any, ...]],
    stop: Callable[[], None],
    tick: Callable[[], None],
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Run tasks `(function, *arguments)`; yields each with its result as it ends.

    Args:
        stop: makes running tasks end soon; called when one fails or the caller gives up.
        tick: called every half second, to show progress.

    Raises:
        ResumableError: a worker process died.
        Whatever a task raised first.
    """
    pending: dict[Future[Any], tuple[Any, ...]] = {executor.submit(*task): task for task in tasks}
    last_tick = time.monotonic()
    try:
        while pending:
            done, _ = wait(pending, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                yield pending.pop(future), future.result()
            if time.monotonic() - last_tick >= _TICK_SECONDS:
                last_tick = time.monotonic()
                tick()
    except BrokenProcessPool as error:
        raise ResumableError(
            "a worker process was killed, perhaps for want of memory; "
            "continue with the same command, perhaps with fewer --workers"
        ) from error
    finally:
        if pending:
            stop()
        executor.shutdown(cancel_futures=True)


def _start_worker() -> None:
    # Ctrl-C reaches every process of the terminal; the parent answers it, and stops the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed closes no queue: without this its workers would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

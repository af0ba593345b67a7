"""Processes that do units of work, and what happens when one of them fails, dies or is orphaned."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from data_tools.mpi import mpi_executor, num_mpi_workers
from megatron_glm.errors import DataError

_TICK_SECONDS = 0.5
# For all workers of a machine; what is not installed is left out.
_LOADED_ONCE = ["data_tools.tokenizing", "megatron_glm.tokenizer.huggingface", "gigatoken", "nanotoken"]
# What worker processes inherit where the user has not said otherwise.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's threads spin when they begin, and have nothing to do
    # Each batch takes the memory that the one before has given back: the C library keeps it, in large pages.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"
    ":glibc.malloc.trim_threshold=2000000000:glibc.malloc.mmap_threshold=1000000000",
}


class ResumableError(DataError):
    """A failure after which what is finished is kept, and the same command continues."""


def available_cores() -> int:
    """Cores this process may use: a batch system grants fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_workers(requested: int | None) -> int:
    """Processes that will do the units: those that MPI lends, else `requested`, else one a core.

    Raises:
        DataError: a number is requested, but MPI has given another.
    """
    if lent := num_mpi_workers():
        if requested not in (None, lent):
            raise DataError(
                f"--workers: {requested}, but mpiexec has started {lent} and the master; leave --workers out, "
                f"or give mpiexec -n {requested + 1}"
            )
        return lent
    return requested or available_cores()


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


def prepare_environment() -> None:
    """Set what the worker processes of this one inherit; to be called before they begin."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def begin_workers(workers: int) -> None:
    """Load what worker processes need, while the caller looks at its inputs; `worker_pool` forks them from that.

    They are not forked from the caller, whose threads would not survive it.
    """
    if workers > 1 and not num_mpi_workers():
        multiprocessing.get_context("forkserver").set_forkserver_preload(_LOADED_ONCE)
        forkserver.ensure_running()


@contextmanager
def worker_pool(workers: int) -> Iterator[Executor]:
    """Worker processes for the block; a single worker is a thread, which starts at once; under MPI all it lends."""
    executor = _make_executor(workers)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def _make_executor(workers: int) -> Executor:
    if num_mpi_workers():
        return mpi_executor()
    if workers == 1:
        return ThreadPoolExecutor(1)
    begin_workers(workers)
    return ProcessPoolExecutor(workers, multiprocessing.get_context("forkserver"), initializer=_start_worker)


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
    pending: dict[Future[Any], tuple[Any, ...]] = {}
    finished: SimpleQueue[Future[Any]] = SimpleQueue()  # to wait for all futures anew for each would be quadratic
    last_tick = time.monotonic()
    try:
        pending |= {executor.submit(*task): task for task in tasks}
        for future in pending:
            future.add_done_callback(finished.put)
        while pending:
            with suppress(Empty):
                future = finished.get(timeout=_TICK_SECONDS)
                yield pending.pop(future), future.result()
            if time.monotonic() - last_tick >= _TICK_SECONDS:
                last_tick = time.monotonic()
                tick()
    except BrokenExecutor as error:
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
    gc.freeze()  # the modules stay: each collection would look through them anew
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed closes no queue: without this its workers would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

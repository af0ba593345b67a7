"""Running a function in several processes of one job, from a test.

Importing torch and DeepSpeed takes seconds; a server that has done it once forks each process in
milliseconds. Functions and arguments are sent by pickle, so they live at the top of a module.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from typing import Any

from megatron_glm.training.launchers import free_port

# What a first step imports besides counts too: torch's compiler alone takes every process two seconds.
_PRELOAD = [
    "torch",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "deepspeed",
    "megatron_glm.training.engines.zero_engine",
    "megatron_glm.training.engines.pipeline_engine",
    "megatron_glm.training.pretraining",
    "setuptools",  # asked for by DeepSpeed's builders
]
_POLL_SECONDS = 0.05


def run_ranks(size: int, function: Callable[..., Any], *args: Any, timeout: float = 120.0) -> list[Any]:
    """`function(*args)` in `size` processes with RANK, WORLD_SIZE, … set: the results by rank.

    Raises:
        AssertionError: with the traceback of the first rank that failed, or at a timeout.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    port = free_port()
    results = context.Queue()
    processes = [
        context.Process(target=_entry, args=(rank, size, port, results, function, args), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        return _collect(processes, results, size, time.monotonic() + timeout)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def _collect(processes: list, results: Any, size: int, deadline: float) -> list[Any]:
    found: dict[int, Any] = {}
    while len(found) < size:
        try:
            rank, value, error = results.get(timeout=_POLL_SECONDS)
        except Exception as nothing:  # queue.Empty: look whether anyone can still answer
            dead = [rank for rank, p in enumerate(processes) if p.exitcode not in (None, 0) and rank not in found]
            if dead:
                raise AssertionError(f"rank {dead[0]} ended with {processes[dead[0]].exitcode}") from nothing
            if time.monotonic() > deadline:
                raise AssertionError(f"no answer of ranks {sorted(set(range(size)) - set(found))}") from nothing
            continue
        if error:
            raise AssertionError(f"rank {rank} failed:\n{error}")
        found[rank] = value
    return [found[rank] for rank in range(size)]


def _entry(rank: int, size: int, port: int, results: Any, function: Callable, args: tuple) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    import torch

    torch.set_num_threads(1)
    try:
        results.put((rank, function(*args), None))
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
    results.close()
    results.join_thread()
    with contextlib.suppress(Exception):
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

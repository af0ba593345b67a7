"""Starting and ending the processes of a run, under any launcher or alone."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch.distributed import distributed_c10d

from megatron_glm.errors import RankError
from megatron_glm.parallel.ranks import DistributedRanks, Ranks
from megatron_glm.training.launchers import free_port, launch_variables
from megatron_glm.training.meeting import meeting

_TIMEOUT = timedelta(minutes=30)
_END_SECONDS = 60


@contextmanager
def distributed_processes(*, threads: int | None, timeout: timedelta = _TIMEOUT) -> Iterator[Ranks]:
    """Join the other processes of the run; the group ends with the block.

    Args:
        timeout: of every group that names none of its own.

    Raises:
        ConfigError: a launcher whose variables are not complete.
        RankError: there is no GPU for this process, DeepSpeed would not use it, or the first one is not reached.
    """
    import deepspeed

    _quieten_deepspeed()
    if threads is not None:
        torch.set_num_threads(threads)
    os.environ |= launch_variables(os.environ) or _one_process()
    backend = _chosen_backend()
    # Otherwise the first start compiles a CPU collective for 49 s, and fails without a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    with meeting(os.environ):
        deepspeed.init_distributed(dist_backend=backend, timeout=timeout, verbose=False)
    done = False
    try:
        with _timeout_of_groups(timeout):
            yield DistributedRanks()
        done = True
    finally:
        if done or backend != "nccl":
            torch.distributed.destroy_process_group()
        else:
            # NCCL ends a group when all of its ranks do: this one would wait for others that wait for it in the middle
            # of a step, and its error would never be told. The end of the process ends the group; in time, at least.
            signal.alarm(_END_SECONDS)


def _chosen_backend() -> str:
    """nccl, with this process's GPU as the current device, or gloo."""
    gpus = torch.cuda.is_available()
    if gpus:
        local_rank = int(os.environ["LOCAL_RANK"])
        if local_rank >= torch.cuda.device_count():
            raise RankError(
                f"rank {os.environ['RANK']}: process {local_rank} of its node has no GPU: it sees"
                f" {torch.cuda.device_count()}; start fewer processes with --num_gpus, or let each see all GPUs of its"
                " node"
            )
        torch.cuda.set_device(local_rank)
    _check_accelerator("cuda" if gpus else "cpu")
    return "nccl" if gpus else "gloo"


def _check_accelerator(expected: str) -> None:
    from deepspeed.accelerator import get_accelerator

    found = get_accelerator().device_name()
    if found != expected:
        raise RankError(
            f"rank {os.environ['RANK']}: DeepSpeed computes on '{found}' where torch sees '{expected}'; unset"
            " DS_ACCELERATOR, and to train on the processor of a machine with GPUs set CUDA_VISIBLE_DEVICES="
        )


@contextmanager
def _timeout_of_groups(timeout: timedelta) -> Iterator[None]:
    """What groups wait that are made without a word of it, as DeepSpeed makes its own.

    torch gives them 10 minutes with NCCL, whatever the first group was given, and then kills the process: a file
    server that is slow for so long would end a run before our watchdog says which rank is missing.
    """
    names = ("default_pg_timeout", "default_pg_nccl_timeout")
    before = {name: getattr(distributed_c10d, name) for name in names}
    for name in names:
        setattr(distributed_c10d, name, timeout)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(distributed_c10d, name, value)


def _one_process() -> dict[str, str]:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    return alone | {"MASTER_PORT": str(free_port())}


def _quieten_deepspeed() -> None:
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    # DeepSpeed calls collectives by names that torch 2.13 has replaced, once a step.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")

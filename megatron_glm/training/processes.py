"""Starting and ending the processes of a run, under any launcher or alone."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch

from megatron_glm.errors import RankError
from megatron_glm.parallel.ranks import DistributedRanks, Ranks
from megatron_glm.training.launchers import free_port, launch_variables
from megatron_glm.training.meeting import meeting

_TIMEOUT = timedelta(minutes=30)


@contextmanager
def distributed_processes(*, threads: int | None, timeout: timedelta = _TIMEOUT) -> Iterator[Ranks]:
    """Join the other processes of the run; the group ends with the block.

    Raises:
        ConfigError: a launcher whose variables are not complete.
        RankError: there is no GPU for this process, or it does not reach the first one.
    """
    import deepspeed

    _quieten_deepspeed()
    if threads is not None:
        torch.set_num_threads(threads)
    os.environ |= launch_variables(os.environ) or _one_process()
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "nccl"
        local_rank = int(os.environ["LOCAL_RANK"])
        if local_rank >= torch.cuda.device_count():
            raise RankError(
                f"rank {os.environ['RANK']}: process {local_rank} of its node has no GPU: it sees"
                f" {torch.cuda.device_count()}; start fewer processes with --num_gpus, or let each see all GPUs of its"
                " node"
            )
        torch.cuda.set_device(local_rank)
    # Otherwise the first start compiles a CPU collective for 49 s, and fails without a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    with meeting(os.environ):
        deepspeed.init_distributed(dist_backend=backend, timeout=timeout, verbose=False)
    try:
        yield DistributedRanks()
    finally:
        torch.distributed.destroy_process_group()


def _one_process() -> dict[str, str]:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    return alone | {"MASTER_PORT": str(free_port())}


def _quieten_deepspeed() -> None:
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    # DeepSpeed calls collectives by names that torch 2.13 has replaced, once a step.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")

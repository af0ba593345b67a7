"""Starting and ending the processes of a run, under the `deepspeed` launcher or alone."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch

from megatron_glm.errors import ConfigError
from megatron_glm.parallel.ranks import DistributedRanks, Ranks

_TIMEOUT = timedelta(minutes=30)


@contextmanager
def distributed_processes(*, threads: int | None, timeout: timedelta = _TIMEOUT) -> Iterator[Ranks]:
    """Join the other processes of the run; the group ends with the block.

    Raises:
        ConfigError: more processes than GPUs on this node.
    """
    import deepspeed

    _quieten_deepspeed()
    if threads is not None:
        torch.set_num_threads(threads)
    if "RANK" not in os.environ:
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ["MASTER_PORT"] = str(_free_port())
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "nccl"
        local_rank = int(os.environ["LOCAL_RANK"])
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"process {local_rank} of this node has no GPU: there are {torch.cuda.device_count()};"
                " start fewer processes with --num_gpus"
            )
        torch.cuda.set_device(local_rank)
    # Otherwise the first start compiles a CPU collective for 49 s, and fails without a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=backend, timeout=timeout, verbose=False)
    try:
        yield DistributedRanks()
    finally:
        torch.distributed.destroy_process_group()


def _quieten_deepspeed() -> None:
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    # DeepSpeed calls collectives by names that torch 2.13 has replaced, once a step.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

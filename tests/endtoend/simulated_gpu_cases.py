"""What the ranks of a job on the simulated machine run, beside training."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from megatron_glm.checkpoint.format import Fragment
from megatron_glm.checkpoint.snapshot import Snapshot
from megatron_glm.errors import DataError
from megatron_glm.parallel.groups import make_groups
from megatron_glm.parallel.layout import Layout
from megatron_glm.training.processes import distributed_processes


def refusals() -> dict[str, str]:
    """What each of the classic mistakes gives, for each that is refused."""
    gpu, host, generator = torch.ones(3, device="cuda"), torch.ones(3), torch.Generator()
    mistakes: dict[str, Callable[[], object]] = {
        "a tensor of the host in arithmetic": lambda: gpu + host,
        "a tensor of the host in arithmetic in place": lambda: host.add_(gpu),
        "an index of the host": lambda: torch.embedding(gpu.view(3, 1), torch.tensor([1])),
        "a tensor of the GPU as an array": gpu.numpy,
        "a generator of the host": lambda: torch.rand(3, device="cuda", generator=generator),
        "memory on another GPU": lambda: torch.ones(3, device="cuda:1"),
        "a GPU that is not there": lambda: torch.cuda.set_device(99),
        "CUDA after a fork": _after_a_fork,
    }
    torch.cuda.set_device(0)
    return {name: error for name, mistake in mistakes.items() if (error := _error_of(mistake))}


def _after_a_fork() -> None:
    child = os.fork()
    if not child:
        os._exit(bool(_error_of(lambda: torch.ones(3, device="cuda"))))
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the child has no GPU")


def refused_messages() -> dict[str, str]:
    """The same for messages to the other rank."""
    with distributed_processes(threads=1):
        gpu = torch.ones(3, 3, device="cuda")
        mistakes = {
            "a message of the host": lambda: dist.all_reduce(torch.ones(3)),
            "a message of a type that NCCL does not know": lambda: dist.all_reduce(gpu.short()),
            "a message with gaps": lambda: dist.all_reduce(gpu[:, 0]),
        }
        return {name: error for name, mistake in mistakes.items() if (error := _error_of(mistake))}


def message_from_one_gpu() -> str:
    """The error of two ranks that never chose a GPU."""
    port, rank = os.environ["MASTER_PORT"], int(os.environ["RANK"])
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    return _error_of(lambda: dist.all_reduce(torch.ones(3, device="cuda")))


def unawaited_copy() -> list[list[float]]:
    """A copy to locked memory of the host, before and after the wait; not what the GPU did to the source since then."""
    source, copy = torch.ones(2, device="cuda"), torch.zeros(2).pin_memory()
    copy.copy_(source, non_blocking=True)
    source += 1
    before = copy.tolist()
    torch.cuda.synchronize()
    return [before, copy.tolist()]


def snapshot() -> list[float]:
    """What is to be saved, as a thread reads it while training goes on."""
    values = torch.ones(2, device="cuda")
    (taken,) = Snapshot().take([Fragment("weight", "weight", 0, values)])
    values += 1
    return taken.values.tolist()


def timeouts() -> list[float]:
    """Minutes that each group waits: the first, ours, and one that is made as DeepSpeed makes its own."""
    with distributed_processes(threads=1) as ranks:
        make_groups(Layout.of(ranks.size, tensor=2, pipeline=1))
        dist.new_group(list(range(ranks.size)))
        groups = [group for group in distributed_c10d._world.pg_map if dist.get_backend(group) == "nccl"]
        return [group.options._timeout.total_seconds() / 60 for group in groups]


def failure_of_one(sign: str) -> bool:
    """Whether rank 1 leaves its job with an error while rank 0 is still in the middle of it."""
    place = Path(sign)
    try:
        with distributed_processes(threads=1) as ranks:
            if ranks.rank == 1:
                raise DataError("rank 1 cannot read its shard")
            until = time.monotonic() + 20
            while not place.exists() and time.monotonic() < until:
                time.sleep(0.01)
            return place.exists()
    except DataError:
        place.touch()
        return True


def _error_of(mistake: Callable[[], object]) -> str:
    try:
        mistake()
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error).splitlines()[0]
    return ""

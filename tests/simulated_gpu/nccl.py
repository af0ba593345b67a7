"""The backend "nccl" of the simulated GPU: gloo carries the messages, and what NCCL refuses is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_UNKNOWN_TYPES = {torch.int16, torch.uint16, torch.uint32, torch.uint64}
_MESSAGES = {  # as gloo calls them
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
} | {
    name: name
    for name in (
        *("_allgather_base", "_reduce_scatter_base", "allgather", "allgather_coalesced", "allreduce", "alltoall"),
        *("allreduce_coalesced", "alltoall_base", "broadcast", "gather", "recv", "reduce", "reduce_scatter", "scatter"),
        "send",
    )
}


def pretend_nccl() -> None:
    """Let torch.distributed find NCCL, with its default timeout of groups."""
    distributed_c10d._NCCL_AVAILABLE = True
    distributed_c10d.default_pg_nccl_timeout = timedelta(minutes=10)
    distributed_c10d.ProcessGroupNCCL = dist.ProcessGroupNCCL = ProcessGroupNCCL


class ProcessGroupNCCL(dist.ProcessGroup):
    """A group whose ranks have a GPU each, and end it together.

    Raises:
        RuntimeError: a message from the host's memory, or from another GPU than the current one; two ranks on one GPU.
    """

    supports_splitting = True
    supports_coalescing = supports_time_estimate = False

    class Options:
        """What torch sets for a group."""

        def __init__(self, *_: object):
            self._timeout = distributed_c10d.default_pg_timeout
            self.global_ranks_in_group: list[int] = []
            self.group_name = ""

    def __init__(self, store: dist.Store, rank: int, size: int, options: Options):
        super().__init__(rank, size)
        self.options = options
        self._store, self._place = store, rank
        self._carrier = dist.ProcessGroupGloo(dist.PrefixStore("carrier", store), rank, size, options._timeout)
        self._has_met = False

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__("_carried")(name) if name in _MESSAGES else super().__getattribute__(name)

    def barrier(self, opts: dist.BarrierOptions | None = None) -> dist.Work:
        """Of the current GPUs."""
        self._meet(torch.cuda.current_device())
        return self._carrier.barrier()

    def shutdown(self) -> None:
        """Returns when all ranks have called it."""
        self._store.add("ended", 1)
        until = time.monotonic() + self.options._timeout.total_seconds()
        while self._store.add("ended", 0) < self.size():
            if time.monotonic() > until:
                raise dist.DistBackendError("the other ranks do not end this group")
            time.sleep(0.01)

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Meet at once, as a group with a device of its own does."""
        self._meet(device.index)

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Of a rank that is outside of the new group."""

    def getBackendName(self) -> str:  # noqa: N802 - torch's
        return "nccl"

    def _get_backend(self, device: torch.device) -> ProcessGroupNCCL:
        _refuse_host(torch.device(device))
        return self

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def _carried(self, name: str) -> Callable[..., dist.Work]:
        send = getattr(self._carrier, _MESSAGES[name])

        def call(*args: Any, **options: Any) -> dist.Work:
            return send(*map(self._memory, args), **{key: self._memory(value) for key, value in options.items()})

        return call

    def _memory(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._memory(part) for part in value]
        if not isinstance(value, torch.Tensor):
            return value
        _refuse_host(value.device)
        if value.device.index != torch.cuda.current_device():
            raise RuntimeError(f"a message from {value.device}; the current GPU is {torch.cuda.current_device()}")
        if value.dtype in _UNKNOWN_TYPES:
            raise RuntimeError(f"Unconvertible NCCL type {value.dtype}")
        if not value.is_contiguous():
            raise ValueError("Tensors must be contiguous")
        self._meet(value.device.index)
        return torch.ops.simulated_gpu.memory_of(value)

    def _meet(self, gpu: int) -> None:
        """NCCL refuses two ranks of one machine on one GPU, when the group sends its first message."""
        if self._has_met:
            return
        self._has_met = True
        self._store.set(f"gpu of {self._place}", str(gpu))
        for other in range(self.size()):
            if other != self._place and int(self._store.get(f"gpu of {other}")) == gpu:
                raise dist.DistBackendError(
                    f"Duplicate GPU detected : rank {self._place} and rank {other} both on CUDA device {gpu}"
                )


def _refuse_host(device: torch.device) -> None:
    if device.type != "cuda":
        raise RuntimeError(f"No backend type associated with device type {device.type}")

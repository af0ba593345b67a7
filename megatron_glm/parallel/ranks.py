"""The processes of a job as one thing that can agree: who am I, what do the others say.

Values travel as JSON bytes in tensors, so no process ever unpickles what another one sent.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import torch
import torch.distributed as dist


class Ranks(Protocol):
    """A group of processes that call each method together.

    Attributes:
        rank: this process's place, 0 <= rank < size.
        size: number of processes.
    """

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """Every process's `value` (anything JSON can hold), by rank, on every process."""

    def barrier(self) -> None:
        """Return when every process has arrived."""


class SingleProcess:
    """A job of one."""

    rank = 0
    size = 1

    def gather(self, value: Any) -> list[Any]:
        return [json.loads(json.dumps(value))]  # tuples become lists here too, as with many processes

    def barrier(self) -> None:
        pass


class DistributedRanks:
    """The processes of a `torch.distributed` group (gloo or nccl); the group must be initialised.

    Args:
        group: default: all processes.
    """

    def __init__(self, group: dist.ProcessGroup | None = None):
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        is_nccl = dist.get_backend(group) == "nccl"  # it moves tensors of GPUs only
        self._device = torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")

    def gather(self, value: Any) -> list[Any]:
        mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self._device)
        lengths = [int(length) for length in self._all_gather(torch.tensor([mine.numel()], device=self._device))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8, device=self._device)
        padded[: mine.numel()] = mine
        received = self._all_gather(padded)
        return [json.loads(bytes(row[:length].cpu().numpy())) for row, length in zip(received, lengths, strict=True)]

    def barrier(self) -> None:
        self.gather(None)  # nobody has everyone's value before everyone has come

    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        received = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(received, tensor, group=self._group)
        return received

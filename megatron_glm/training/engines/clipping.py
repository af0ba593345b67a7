"""Gradient clipping by the global norm, for the stage where DeepSpeed does not tell the norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    limit: float,
    group: dist.ProcessGroup | None = None,
    pipeline: dist.ProcessGroup | None = None,
) -> float:
    """Scale all gradients so that their global norm is at most `limit` (0: leave them); the norm before.

    Args:
        parameters: of this rank; those that it has a shard of are marked `model_parallel`, the others are alike
            on all ranks and count once. What is marked `ds_pipe_replicated` another stage has too, and counts.
        group: the ranks that share each layer; default: this one has all of it.
        pipeline: the stages that have the other layers; default: there are none.
    """
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    squares = torch.zeros(2, dtype=torch.float64, device=parameters[0].device)  # of shards, of whole gradients
    for parameter in parameters:
        # In fp64, as DeepSpeed does: torch sums in fp32 on a CPU, and is 0.3 % off for 40 million entries.
        if getattr(parameter, "ds_pipe_replicated", False):
            continue
        is_whole = int(not getattr(parameter, "model_parallel", False))
        squares[is_whole] += torch.linalg.vector_norm(parameter.grad, dtype=torch.float64).square()
    if group is not None:
        dist.all_reduce(squares[:1], group=group)
    if pipeline is not None:
        dist.all_reduce(squares, group=pipeline)
    norm = squares.sum().sqrt()
    if limit:
        nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return float(norm)

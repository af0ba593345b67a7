"""What the tiles of the loss are measured by: bf16 logits of a micro-batch's targets."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from glm_kernels.loss import shard_triton
from glm_kernels.loss.tiles import TILES
from glm_kernels.tuning import Problem, Workload, combinations


def problems(workload: Workload) -> Iterator[Problem]:
    """The entries of the table. A call makes the matrix products too, whose time is the same for all tiles."""

    def inputs(device: str) -> tuple[torch.Tensor, ...]:
        hidden = torch.randn(workload.targets, workload.hidden, device=device, dtype=torch.bfloat16)
        weight = torch.randn(workload.words, workload.hidden, device=device, dtype=torch.bfloat16) / 32
        return hidden, weight, torch.zeros(workload.targets, device=device, dtype=torch.int64)

    def statistics(device: str):
        arguments = inputs(device)
        return lambda: shard_triton.statistics(*arguments, workload.words)

    def gradient(device: str):
        arguments = inputs(device)
        upstream, normalizer = torch.ones(2, workload.targets, device=device)
        return lambda: shard_triton.gradients(upstream, *arguments, normalizer, workload.words, 0.0, workload.words)

    for entry, work in (("loss_statistics", statistics), ("loss_gradient", gradient)):
        blocks = {"BLOCK_V": (1024, 2048, 4096, 8192)}
        yield Problem(entry, TILES, combinations(blocks, num_warps=(4, 8, 16), num_stages=(1,)), work)

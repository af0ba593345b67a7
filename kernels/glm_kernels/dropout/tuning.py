"""What the tiles of dropout with residual are measured by: the bf16 hidden states of a row."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from glm_kernels.dropout.fused import fused_dropout_add
from glm_kernels.dropout.tiles import TILES
from glm_kernels.tuning import Problem, Workload, combinations


def problems(workload: Workload) -> Iterator[Problem]:
    """The entries of the table."""

    def work(device: str):
        shape = (2, workload.tokens, workload.hidden)
        x, residual = torch.randn(shape, device=device, dtype=torch.bfloat16)
        token_key = torch.arange(workload.tokens, device=device)
        return lambda: fused_dropout_add(x, residual, token_key, None, 1, 0.1)

    blocks = {"BLOCK_T": (1, 2, 4, 8, 16), "BLOCK_H": (128, 256, 512, 1024)}
    yield Problem("dropout_add", TILES, combinations(blocks, num_warps=(2, 4, 8), num_stages=(1,)), work)

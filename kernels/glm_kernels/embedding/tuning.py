"""What the tiles of the embedding are measured by: a row whose block positions are mostly 0, as GLM's are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from glm_kernels.embedding.fused import fused_embedding
from glm_kernels.embedding.gradient import table_gradient
from glm_kernels.embedding.tiles import TILES
from glm_kernels.tuning import Problem, Workload, combinations

_PART_A = 0.82  # of the tokens, in a row of short spans
_POSITIONS = 513


def problems(workload: Workload) -> Iterator[Problem]:
    """The entries of the table."""

    def forward(device: str) -> Callable[[], Tensor]:
        ids, tables = _ids(workload, device), _tables(workload, device)
        return lambda: fused_embedding(None, *tables, *ids, None, 0, False, 0, 0.0, False)

    blocks = {"BLOCK_T": (1, 2, 4, 8, 16), "BLOCK_H": (128, 256, 512, 1024)}
    yield Problem("embedding_forward", TILES, combinations(blocks, num_warps=(2, 4, 8), num_stages=(1,)), forward)

    def gradients(dtype: torch.dtype, deterministic: bool) -> Callable[[str], Callable[[], object]]:
        def work(device: str) -> Callable[[], object]:
            ids = _ids(workload, device)
            upstream = torch.randn(workload.tokens, workload.hidden, device=device, dtype=dtype)
            rows = (workload.words, _POSITIONS, _POSITIONS)
            return lambda: [
                table_gradient(upstream, x, None, 0, n, 0, 0.0, dtype, deterministic)
                for x, n in zip(ids, rows, strict=True)
            ]

        return work

    blocks = {"BLOCK_T": (16, 32, 64, 128), "BLOCK_H": (32, 64, 128)}
    for kernel, deterministic in (("embedding_gradient", False), ("embedding_sorted", True)):
        for suffix, dtype in (("", torch.bfloat16), ("_fp32", torch.float32)):
            tiles = combinations(blocks, num_warps=(4, 8), num_stages=(1,))
            yield Problem(kernel + suffix, TILES, tiles, gradients(dtype, deterministic))
    parts = {"BLOCK_S": (8, 16, 32), "BLOCK_H": (32, 64, 128)}
    carried = combinations(parts, num_warps=(2, 4), num_stages=(1,))
    yield Problem("embedding_carried", TILES, carried, gradients(torch.bfloat16, True))


def _ids(workload: Workload, device: str) -> list[Tensor]:
    shape = (workload.tokens,)
    word = torch.randint(0, workload.words, shape, device=device)
    position = torch.randint(0, _POSITIONS, shape, device=device)
    part_b = torch.rand(shape, device=device) > _PART_A
    return [word, position, position * part_b]


def _tables(workload: Workload, device: str) -> list[Tensor]:
    return [
        torch.randn(rows, workload.hidden, device=device, dtype=torch.bfloat16)
        for rows in (workload.words, _POSITIONS, _POSITIONS)
    ]

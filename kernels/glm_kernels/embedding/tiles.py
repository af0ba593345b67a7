"""Tiles of the embedding: tokens and features of a program, and parts that a sum over tiles adds at a time."""

from __future__ import annotations

import torch

from glm_kernels.tiles import Table, Tile

_FP32 = "_fp32"  # their products run outside the tensor cores, and need twice the registers
_ENTRIES = {
    "embedding_forward": Tile({"BLOCK_T": 4, "BLOCK_H": 256}, num_warps=4, num_stages=1),
    # More tokens a tile are fewer sums that meet at a hot row.
    "embedding_gradient": Tile({"BLOCK_T": 64, "BLOCK_H": 64}, num_warps=4, num_stages=1),
    "embedding_gradient_fp32": Tile({"BLOCK_T": 64, "BLOCK_H": 32}, num_warps=4, num_stages=1),
    "embedding_sorted": Tile({"BLOCK_T": 64, "BLOCK_H": 64}, num_warps=4, num_stages=1),
    "embedding_sorted_fp32": Tile({"BLOCK_T": 64, "BLOCK_H": 32}, num_warps=4, num_stages=1),
    "embedding_carried": Tile({"BLOCK_S": 16, "BLOCK_H": 64}, num_warps=4, num_stages=1),
}
TILES: Table = {"sm_80": _ENTRIES, "sm_90": _ENTRIES}


def entry_of(kernel: str, dtype: torch.dtype) -> str:
    """The table entry of a kernel with matrix products, "embedding_gradient", for rows of a type."""
    return kernel + (_FP32 if dtype == torch.float32 else "")

"""Tiles of dropout with residual: tokens and features of a program."""

from __future__ import annotations

from glm_kernels.tiles import Table, Tile

# Eight 16-bit features a thread are one load of 16 bytes.
TILES: Table = {
    "sm_80": {"dropout_add": Tile({"BLOCK_T": 4, "BLOCK_H": 256}, num_warps=4, num_stages=1)},
    "sm_90": {"dropout_add": Tile({"BLOCK_T": 4, "BLOCK_H": 256}, num_warps=4, num_stages=1)},
}

"""Tiles of the loss: columns of the vocabulary that a program has at a time."""

from __future__ import annotations

from glm_kernels.tiles import Tile

# A chunk has thousands of tokens, so that programs are plenty; a wide block needs few reductions.
TILES = {
    "sm_80": {
        "loss_statistics": Tile({"BLOCK_V": 4096}, num_warps=8, num_stages=1),
        "loss_gradient": Tile({"BLOCK_V": 2048}, num_warps=4, num_stages=1),
    },
    "sm_90": {
        "loss_statistics": Tile({"BLOCK_V": 4096}, num_warps=8, num_stages=1),
        "loss_gradient": Tile({"BLOCK_V": 2048}, num_warps=4, num_stages=1),
    },
}

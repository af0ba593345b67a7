"""One epoch of a source: blocks of windows, taken in waves.

The stream is divided into blocks of 16 windows, which are visited in an order of chance. 1024 blocks that
follow each other in that order are a wave: its windows are mixed with each other, and one wave is
finished before the next begins. So a batch comes from about a thousand places of the corpus, and yet at
most one wave of an epoch is ever partly read: from there on the epoch may be cut into other windows, and
every token is still read once.

Windows are counted in cells. A block has `per_block` cells, the block at place b of the order those from
b × per_block on. Two blocks may hold fewer windows than cells, the first and the last of the stream; their missing
cells are the two holes. All of it is arithmetic: an epoch takes as much memory as its fifteen integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Self

import numpy as np

from megatron_glm.data.permutation import Permutation

BLOCK_WINDOWS = 16
WAVE_BLOCKS = 1024


def windows_per_epoch(length: int, stride: int) -> int:
    """Windows of an epoch that is not cut otherwise midway, whatever its shift; the last may be empty.

    Args:
        length: tokens of the stream, >= 1.
        stride: tokens of a window.
    """
    return -(-(length + stride - 1) // stride)


@dataclass(frozen=True)
class Cuts:
    """Where the windows of an epoch lie: integers, or int64 arrays [k] for the epochs of k samples."""

    length: int  # tokens of the stream
    shift: int  # tokens by which the blocks are moved to the left
    block: int  # tokens of a block
    stride: int  # tokens of a window
    num_blocks: int
    per_block: int  # windows of a block, at most
    skipped: int  # windows of the first block that would lie before the stream
    hole: int  # the first missing cell
    missing: int  # cells
    next_hole: int
    next_missing: int

    @classmethod
    def of(cls, length: int, grid_stride: int, stride: int, shift: int, blocks: Permutation) -> Self:
        """Those of an epoch.

        Args:
            length: tokens of the stream, >= 1.
            grid_stride: tokens of the windows by which the epoch's blocks are made.
            stride: tokens of the windows into which the blocks are cut.
            shift: of the grid to the left, in range(grid_stride).
            blocks: the order of the blocks.
        """
        block = BLOCK_WINDOWS * grid_stride
        per_block, skipped, last = -(-block // stride), shift // stride, blocks.n - 1
        if stride == grid_stride:
            in_last = windows_per_epoch(length, stride) - last * BLOCK_WINDOWS
        else:
            in_last = max(0, -(-min(block, length + shift - last * block) // stride))
        missing = {0: skipped}
        missing[last] = missing.get(last, 0) + per_block - in_last
        holes = sorted((((blocks.position_of(b) + 1) * per_block - count), count) for b, count in missing.items())
        (hole, count), (next_hole, next_count) = holes if len(holes) == 2 else (*holes, (0, 0))
        return cls(length, shift, block, stride, blocks.n, per_block, skipped, hole, count, next_hole, next_count)

    @classmethod
    def each(cls, cuts: Sequence[Self], which: np.ndarray) -> Self:
        """Of many samples at once: which int64 [k] are places in `cuts`."""
        return cls(*np.array([astuple(cut) for cut in cuts], np.int64).reshape(-1, 11)[which].T)

    @property
    def num_windows(self) -> int:
        return self.num_blocks * self.per_block - self.missing - self.next_missing

    def cell(self, window: np.ndarray) -> np.ndarray:
        """The cell of the n-th window, in the order of the blocks: int64 [k] -> int64 [k]."""
        cell = window + self.missing * (window >= self.hole)
        return cell + self.next_missing * (cell >= self.next_hole)

    def wave(self, window: np.ndarray) -> np.ndarray:
        """The wave that the n-th window belongs to: int64 [k] -> int64 [k]."""
        return self.cell(window) // (WAVE_BLOCKS * self.per_block)

    def windows_before(self, wave: np.ndarray) -> np.ndarray:
        """How many windows the waves before this one have: int64 [k] -> int64 [k]."""
        block = np.minimum(wave * WAVE_BLOCKS, self.num_blocks)
        cell = block * self.per_block
        return cell - self.missing * (cell > self.hole) - self.next_missing * (cell > self.next_hole)

    def span(self, block: np.ndarray, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start and stop, in the stream, of a block's part: int64 [k], int64 [k] -> int64 [k] each."""
        begin = block * self.block - self.shift
        start = begin + (part + self.skipped * (block == 0)) * self.stride
        stop = np.minimum(start + self.stride, begin + self.block)
        return np.clip(start, 0, self.length), np.clip(stop, 0, self.length)

"""The samples of one source, counted from its first: which epoch, cut into which windows.

As long as the window stays, every epoch has the same number of windows and the epoch of a sample is a
division away. A change of the window adds at most two stretches: the rest of the epoch, whose unread
waves are cut anew, and the epochs after it, made of blocks of the new size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from megatron_glm.data.epoch import BLOCK_WINDOWS, WAVE_BLOCKS, Cuts, windows_per_epoch
from megatron_glm.data.permutation import Permutation

ENDLESS = 1 << 62  # windows: more than a run has samples
_REMEMBERED = 64  # epochs and waves: those of a batch, with room for a source that is read fast

# What a permutation is for: keys with different purposes never coincide.
_BLOCKS, _WINDOWS, _SHIFTS = 1, 2, 3


class Stretch(NamedTuple):
    """Samples of a source that are cut alike."""

    first: int  # the source's sample with which it begins
    epoch: int  # of that sample
    read: int  # windows of that epoch, cut as here, that come before it
    windows: int  # of each epoch; ENDLESS where the stretch ends with its epoch
    grid_stride: int  # tokens of the windows by which the blocks are made
    stride: int  # tokens of a window


class SourceOrder:
    """The order of one source.

    Args:
        length: stream tokens, >= 1.
        seed: of the run.
        source: a number of its own; with the seed it keys everything that chance decides.

    Attributes:
        stretches: by first sample; none until a window is set.
    """

    def __init__(self, length: int, *, seed: int, source: int):
        self.stretches: list[Stretch] = []
        self._length = length
        self._key = seed, source
        self.epoch = lru_cache(_REMEMBERED)(self._epoch)
        self.wave = lru_cache(_REMEMBERED)(self._wave)
        self._shifts = lru_cache(_REMEMBERED)(lambda grid: Permutation(grid, seed, source, _SHIFTS))

    def set_window(self, sample: int, window: int) -> None:
        """From this sample of the source on the window is another; a wave that is partly read keeps its own.

        Args:
            sample: not before that of the last change.
            window: raw tokens of a sample, at most: stream tokens + 1.
        """
        stride = window - 1
        if self.stretches and self.stretches[-1].stride == stride:
            return
        first, epoch, wave = self._next_wave(sample) if self.stretches else (sample, 0, 0)
        kept = [stretch for stretch in self.stretches if stretch.first < first]  # later changes have not begun
        if wave:
            rest = Stretch(first, epoch, 0, ENDLESS, kept[-1].grid_stride, stride)
            cuts, _ = self.epoch(rest, epoch)
            kept.append(rest._replace(read=int(cuts.windows_before(wave))))
            first, epoch = first + int(cuts.num_windows) - kept[-1].read, epoch + 1
        self.stretches = [*kept, Stretch(first, epoch, 0, windows_per_epoch(self._length, stride), stride, stride)]

    def _next_wave(self, sample: int) -> tuple[int, int, int]:
        """The first sample, from this one on, that begins a wave; its epoch and wave."""
        stretch = next(stretch for stretch in reversed(self.stretches) if stretch.first <= sample)
        turns, place = divmod(sample - stretch.first, stretch.windows)
        epoch, place = stretch.epoch + turns, stretch.read + place
        cuts, _ = self.epoch(stretch, epoch)
        wave = int(cuts.wave(place))
        if place > cuts.windows_before(wave):
            wave += 1
            sample += int(cuts.windows_before(wave)) - place
        return (sample, epoch + 1, 0) if wave * WAVE_BLOCKS >= cuts.num_blocks else (sample, epoch, wave)

    def _epoch(self, stretch: Stretch, epoch: int) -> tuple[Cuts, Permutation]:
        """The cuts of an epoch in a stretch, and the order of its blocks."""
        grid = stretch.grid_stride
        num_blocks = -(-windows_per_epoch(self._length, grid) // BLOCK_WINDOWS)
        blocks = Permutation(num_blocks, *self._key, _BLOCKS, epoch)
        # Every shift comes once in `grid` epochs, so no cut comes twice in them.
        shift = int(self._shifts(grid)(np.array([epoch % grid]))[0])
        return Cuts.of(self._length, grid, stretch.stride, shift, blocks), blocks

    def _wave(self, stretch: Stretch, epoch: int, wave: int) -> Permutation:
        """The order of the windows of a wave."""
        cuts, _ = self.epoch(stretch, epoch)
        windows = int(cuts.windows_before(wave + 1) - cuts.windows_before(wave))
        return Permutation(windows, *self._key, _WINDOWS, epoch, wave)

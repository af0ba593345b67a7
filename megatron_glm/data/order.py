"""Where the window of each global sample lies: phase, blend, epoch, wave, window.

Sample index → the phase that holds there → its source and how many of that source came before (blend) → epoch
and wave of the source (source_order.py) → a window of the wave (a keyed permutation) → its block (another)
→ a range of the source's stream. Each step is arithmetic, so the order needs no state, no file and no
memory that grows with the corpus.

What is random, by keys of seed, source and epoch: the order of an epoch's blocks (16 windows that are neighbours in
the text), the order of the windows in a wave (1024 blocks), and how far the epoch's grid is shifted. What
is not: that the windows of a block come in the same wave, that a wave ends before the next begins,
and the turns of the sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from megatron_glm.data.blend import Blend
from megatron_glm.data.epoch import Cuts
from megatron_glm.data.permutation import permute_each
from megatron_glm.data.source_order import SourceOrder, Stretch

MAX_SAMPLES = 1 << 62  # global sample indices of training; those of evaluation lie above
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Change:
    """What holds from a sample on."""

    first_sample: int
    sources: tuple[int, ...]  # places in the order's `lengths`
    weights: tuple[float | Fraction, ...]  # of these sources, as `Blend` takes them
    window: int  # raw tokens of a sample, at most
    field: str = "data.sources"  # where the sources stand in the configuration, for errors


class Order:
    """The order of the training samples.

    A source keeps its place in its own stream over all changes, also while it has no samples; where the window
    changes it first finishes the wave that it has begun.

    Args:
        lengths: stream tokens of each source, >= 1, also of those that come with a change.
        weights: of the first sources, as `Blend` takes them.
        window: raw tokens of a sample, at most; a window is window − 1 stream tokens.
        seed: of the run. A source's order depends on the seed and on its place in `lengths`.
        changes: by first sample, each of which is later than the one before.

    Raises:
        ConfigError: weights that cannot be kept exactly, or too small for a sample in 65,536.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        weights: Sequence[float | Fraction],
        *,
        window: int,
        seed: int,
        changes: Sequence[Change] = (),
    ):
        phases = [Change(0, tuple(range(len(weights))), tuple(weights), window), *changes]
        self._first_samples = np.array([phase.first_sample for phase in phases], np.int64)
        self._blends = [Blend(phase.weights, field=phase.field) for phase in phases]
        self._sources = [np.array(phase.sources, np.int64) for phase in phases]
        self._orders = [SourceOrder(length, seed=seed, source=source) for source, length in enumerate(lengths)]
        self._before = []  # samples of each source before each phase, int64 [sources]
        taken = np.zeros(len(lengths), np.int64)
        for number, phase in enumerate(phases):
            if number:
                samples = phase.first_sample - phases[number - 1].first_sample
                taken = taken.copy()
                taken[self._sources[number - 1]] += self._blends[number - 1].counts_before(samples)
            self._before.append(taken)
            for source in phase.sources:
                self._orders[source].set_window(int(taken[source]), phase.window)
        self._stretches = _table([order.stretches for order in self._orders])

    def phase(self, indices: np.ndarray) -> np.ndarray:
        """Which phase holds at each sample, 0 before the first change: int64 [k] -> int64 [k].

        Raises:
            IndexError: an index outside range(2**62).
        """
        indices = np.asarray(indices, np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < MAX_SAMPLES):
            raise IndexError(f"samples {indices.min()}..{indices.max()} lie outside range(2**62)")
        return np.searchsorted(self._first_samples, indices, side="right") - 1

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Source, start and stop (stream tokens) of each sample's window: int64 [k] -> int64 [k] each.

        The last window of an epoch may be empty.

        Raises:
            IndexError: an index outside range(2**62).
        """
        indices = np.asarray(indices, np.int64)
        source, sample = self._turns(indices)
        stretch = (self._stretches[source, :, 0] <= sample[:, None]).sum(axis=1) - 1
        first, first_epoch, read, windows = self._stretches[source, stretch].T
        turn, place = np.divmod(sample - first, windows)
        epoch, place = first_epoch + turn, place + read

        places, member = _distinct(source, stretch, epoch)
        found = [(self._orders[s], self._orders[s].stretches[t], e) for s, t, e in places]
        cuts, blocks = zip(*(order.epoch(part, e) for order, part, e in found), strict=True) if found else ((), ())
        cut = Cuts.each(cuts, member)
        wave = cut.wave(place)
        before = cut.windows_before(wave)

        waves, wave_member = _distinct(member, wave)
        orders = [found[k][0].wave(*found[k][1:], number) for k, number in waves]
        cell = cut.cell(before + permute_each(orders, wave_member, place - before))
        position, part = np.divmod(cell, cut.per_block)
        start, stop = cut.span(permute_each(blocks, member, position), part)
        return source, start, stop

    def _turns(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The source of each sample, and how many samples of it came before: int64 [k] each."""
        phase = self.phase(indices)
        source, sample = np.empty_like(indices), np.empty_like(indices)
        for number in np.unique(phase).tolist():
            inside = phase == number
            turn, ordinal = self._blends[number](indices[inside] - self._first_samples[number])
            source[inside] = self._sources[number][turn]
            sample[inside] = ordinal + self._before[number][source[inside]]
        return source, sample


def _table(stretches: Sequence[Sequence[Stretch]]) -> np.ndarray:
    """First sample, epoch, windows read and windows an epoch of every stretch: int64 [sources, most stretches, 4]."""
    table = np.full((len(stretches), max(map(len, stretches)), 4), _NEVER)
    for source, own in enumerate(stretches):
        for number, stretch in enumerate(own):
            table[source, number] = stretch[:4]
    return table


def _distinct(*columns: np.ndarray) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """The different rows, and which of them each row is: int64 [k] each -> rows, int64 [k]."""
    by_row = np.lexsort(columns)
    rows = np.stack(columns, axis=1)[by_row]
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    member = np.empty(len(rows), np.int64)
    member[by_row] = np.cumsum(is_new) - 1
    return [tuple(row) for row in rows[is_new].tolist()], member

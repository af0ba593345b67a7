"""Where the window of each global sample lies: blend, epoch, permutation, shifted grid.

Sample index → its source and ordinal there (blend) → epoch and position (every epoch of a source has the
same number of windows) → window (a keyed permutation of the epoch) → a range of the source's stream.
Each step is arithmetic, so the order needs no state, no memory and no file, whatever the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from megatron_glm.data.blend import Blend
from megatron_glm.data.permutation import Permutation

MAX_SAMPLES = 1 << 62  # global sample indices of training; those of evaluation lie above
_SHIFTS = 1  # sets the key of the grid's shifts apart from the keys of the windows' orders


class Order:
    """The order of the training samples.

    Args:
        lengths: stream tokens of each source, >= 1.
        weights: of the sources, as `Blend` takes them.
        window: raw tokens of a sample, at most; a window is window − 1 stream tokens.
        seed: of the run. A source's order depends on the seed and on its place among the sources.
    """

    def __init__(self, lengths: Sequence[int], weights: Sequence[float | Fraction], *, window: int, seed: int):
        self.blend = Blend(weights)
        self._lengths = np.array(lengths, np.int64)
        self._stride = window - 1
        self._seed = seed
        # One more than fills the stream, unless it fits exactly: room for the shift.
        self.windows_per_epoch = -(-(self._lengths + self._stride - 1) // self._stride)

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Source, start and stop (stream tokens) of each sample's window: int64 [k] -> int64 [k] each.

        The last window of an epoch may be empty.

        Raises:
            IndexError: an index outside range(2**62).
        """
        indices = np.asarray(indices, np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < MAX_SAMPLES):
            raise IndexError(f"samples {indices.min()}..{indices.max()} lie outside range(2**62)")
        source, ordinal = self.blend(indices)
        epoch, position = np.divmod(ordinal, self.windows_per_epoch[source])
        start = np.empty_like(position)
        groups, member = np.unique(np.stack([source, epoch]), axis=1, return_inverse=True)
        for group, (group_source, group_epoch) in enumerate(groups.T.tolist()):
            inside = member == group
            start[inside] = self._window_starts(group_source, group_epoch, position[inside])
        length = self._lengths[source]
        stop = np.clip(start + self._stride, 0, length)
        return source, np.clip(start, 0, length), stop

    def _window_starts(self, source: int, epoch: int, position: np.ndarray) -> np.ndarray:
        windows = int(self.windows_per_epoch[source])
        window = Permutation(windows, self._seed, source, epoch)(position)
        return window * self._stride - self._shift(source, epoch)

    def _shift(self, source: int, epoch: int) -> int:
        """How far the epoch's grid is moved to the left, in range(stride): no cut occurs twice in `stride` epochs."""
        shifts = Permutation(self._stride, self._seed, source, 0, _SHIFTS)
        return int(shifts(np.array([epoch % self._stride]))[0])

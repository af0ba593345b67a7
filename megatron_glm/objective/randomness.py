"""Random numbers that are a function of where they are used.

A generator with a state would tie a sample to the samples drawn before it, or cost a new generator
each. Here every number has an address (seed, sample index, purpose, place in the window), so any
of them can be computed alone, in any order, or for a whole batch at once.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

_MASK = 2**64 - 1
_WEYL = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: consecutive places land far apart
_MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_UNIT = 2.0**-53


class Purpose(IntEnum):
    """What a random number decides. The values are part of every sample: never renumber them."""

    OBJECTIVE = 0
    SINGLE_SPAN = 1
    SHORT_SEQUENCE = 2
    SEQUENCE_LENGTH = 3
    RUN = 4  # which run of a segment gets the only span
    LENGTH = 5  # of a span
    PLACE = 6  # of a span or sentence
    ARRANGEMENT = 7  # which of the drawn lengths comes first in the text
    ORDER = 8  # of the spans in part B
    FORM = 9  # prefix or infill
    CORRUPTION = 10  # [dBLOCK]


class Draws:
    """The random numbers of one sample.

    Args:
        seed: of the run, 0 <= seed < 2**63.
        index: global sample index, 0 <= index < 2**63.

    Source: splitmix64 (Steele, Lea and Flood, 2014), one stream a purpose.
    """

    def __init__(self, seed: int, index: int):
        self._key = _mix(_mix(seed) + index & _MASK)

    def one(self, purpose: Purpose) -> float:
        """A number in [0, 1) for the sample as a whole."""
        return (_mix(_mix(self._key + purpose & _MASK) + _WEYL & _MASK) >> 11) * _UNIT

    def per_token(self, purpose: Purpose, n: int) -> np.ndarray:
        """A number in [0, 1) for each place of the window: float64 [n]; the first of them is `one`."""
        bits = np.arange(1, n + 1, dtype=np.uint64)
        bits *= np.uint64(_WEYL)
        bits += np.uint64(_mix(self._key + purpose & _MASK))
        for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
            bits ^= bits >> np.uint64(shift)
            bits *= np.uint64(multiplier)
        bits ^= bits >> np.uint64(31)
        return (bits >> np.uint64(11)) * _UNIT


class BatchDraws:
    """The random numbers of many samples: those of their `Draws`, with all addresses of a purpose asked for at once.

    Args:
        seed: of the run, 0 <= seed < 2**63.
        indices: global sample indices, int64 [k].
    """

    def __init__(self, seed: int, indices: np.ndarray):
        self._keys = _mix_many(indices.astype(np.uint64) + np.uint64(_mix(seed)))

    def at(self, purpose: Purpose, samples: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The number of each place of a sample: int64 [n], int64 [n] -> float64 [n].

        Args:
            samples: which of `indices`, as their places there.
        """
        bits = _mix_many(self._keys + np.uint64(purpose))[samples]
        bits += (places + 1).astype(np.uint64) * np.uint64(_WEYL)
        return (_mix_many(bits) >> np.uint64(11)) * _UNIT

    def ones(self, purpose: Purpose) -> np.ndarray:
        """The number of each sample as a whole: float64 [k]."""
        samples = np.arange(len(self._keys))
        return self.at(purpose, samples, np.zeros_like(samples))


def _mix_many(x: np.ndarray) -> np.ndarray:
    """`_mix` of each: uint64 [n] -> uint64 [n]."""
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        x = (x ^ x >> np.uint64(shift)) * np.uint64(multiplier)
    return x ^ x >> np.uint64(31)


def _mix(x: int) -> int:
    """The splitmix64 finalizer: every input bit reaches every output bit."""
    x = (x ^ x >> 30) * _MULTIPLIERS[0] & _MASK
    x = (x ^ x >> 27) * _MULTIPLIERS[1] & _MASK
    return x ^ x >> 31

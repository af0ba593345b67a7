"""64-bit hashes that key dropout, in NumPy alone: worker processes, which have no torch, hash the tokens of a row."""

from __future__ import annotations

import numpy as np

_WORD = 2**64 - 1


def hashed(*words: int) -> int:
    """A 64-bit hash of integers in range(2**64), as a signed integer: the same on every machine."""
    value = 0
    for word in words:
        value = _mix_one(value ^ word)
    return value - (value >> 63 << 64)


def token_keys(sample: np.ndarray, token: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each token's sample and place in it: int64 [T], int32 [T] -> int64 [T]."""
    return _mix(_mix(sample.astype(np.uint64)) ^ token.astype(np.uint64)).view(np.int64)


def _mix(x: np.ndarray) -> np.ndarray:
    """A step of splitmix64: every input bit reaches every output bit. uint64 [k] -> uint64 [k]."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is meant
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return x ^ x >> np.uint64(31)


def _mix_one(x: int) -> int:
    """`_mix` of one number, in Python's own integers: torch.compile follows those."""
    x = x + 0x9E3779B97F4A7C15 & _WORD
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _WORD
    return x ^ x >> 31

"""A random order over n items that needs no memory.

A shuffled epoch over 80 million windows would need a 640 MB index array on every rank, or a
cache file that all nodes wait for. A keyed bijection computes any entry of the order when it
is asked for, and its whole state is the key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ROUNDS = 6  # a balanced Feistel network is indistinguishable from random well before this


class Permutation:
    """A keyed bijection of ``range(n)``, evaluated lazily.

    Args:
        n: number of items, 1 <= n < 2**62.
        key: any non-negative integers; equal keys give equal orders on every machine.

    Source: format-preserving encryption by a Feistel network with cycle walking
    (Black and Rogaway, 2002).
    """

    def __init__(self, n: int, *key: int):
        if not 1 <= n < 2**62:
            raise ValueError(f"a permutation needs 1 <= n < 2**62 items, got n={n}")
        self.n = n
        self._half_bits = max(1, (n - 1).bit_length() + 1 >> 1)
        self._half_mask = np.uint64((1 << self._half_bits) - 1)
        # SeedSequence mixes the key and fixes the byte order, so the order is portable.
        self._round_keys = np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64)

    def __call__(self, index: np.ndarray) -> np.ndarray:
        """Where each position of the order points: int64 [k] -> int64 [k], values in range(n)."""
        index = np.asarray(index)
        if index.size and not (index.min() >= 0 and index.max() < self.n):
            raise IndexError(f"positions {index.min()}..{index.max()} lie outside range({self.n})")
        image = self._encrypt(index.astype(np.uint64))
        # The network permutes the next power of four; walk on until the value is back in range.
        # Fewer than four steps are expected, since n fills over a quarter of it.
        while (outside := image >= self.n).any():
            image[outside] = self._encrypt(image[outside])
        return image.astype(np.int64)

    def position_of(self, item: int) -> int:
        """Which position of the order points to an item: the inverse."""
        if not 0 <= item < self.n:
            raise IndexError(f"item {item} lies outside range({self.n})")
        if self.n == 1:
            return 0
        preimage = self._decrypt(np.array([item], np.uint64))
        while preimage[0] >= self.n:
            preimage = self._decrypt(preimage)
        return int(preimage[0])

    def _encrypt(self, block: np.ndarray) -> np.ndarray:
        return _network(block, np.uint64(self._half_bits), self._half_mask, self._round_keys)

    def _decrypt(self, block: np.ndarray) -> np.ndarray:
        left, right = block >> np.uint64(self._half_bits), block & self._half_mask
        for round_key in self._round_keys[::-1]:
            left, right = right ^ (_mix(left ^ round_key) & self._half_mask), left
        return left << np.uint64(self._half_bits) | right


def permute_each(orders: Sequence[Permutation], which: np.ndarray, index: np.ndarray) -> np.ndarray:
    """`orders[which[i]](index[i])` for all i: a call for many orders costs what one for a single order costs.

    Args:
        which: int64 [k], places in `orders`.
        index: int64 [k], each inside its order, which is not checked.
    """
    n = np.array([order.n for order in orders], np.uint64)[which]
    half_bits = np.array([order._half_bits for order in orders], np.uint64)[which]
    half_mask = np.array([order._half_mask for order in orders], np.uint64)[which]
    round_keys = np.array([order._round_keys for order in orders], np.uint64).reshape(-1, _ROUNDS)[which].T
    image = _network(np.asarray(index).astype(np.uint64), half_bits, half_mask, round_keys)
    while len(outside := np.flatnonzero(image >= n)):
        image[outside] = _network(image[outside], half_bits[outside], half_mask[outside], round_keys[:, outside])
    return image.astype(np.int64)


def _network(block: np.ndarray, half_bits: np.ndarray, half_mask: np.ndarray, round_keys: np.ndarray) -> np.ndarray:
    left, right = block >> half_bits, block & half_mask
    for round_key in round_keys:
        left, right = right, left ^ (_mix(right ^ round_key) & half_mask)
    return left << half_bits | right


def _mix(x: np.ndarray) -> np.ndarray:
    """The splitmix64 finalizer: every input bit reaches every output bit. uint64 [k] -> uint64 [k]."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is meant
        x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return x ^ x >> np.uint64(31)

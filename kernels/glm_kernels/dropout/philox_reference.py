"""The masks of the kernels, in NumPy: what `philox.py` draws, for tests and for replaying a mask."""

from __future__ import annotations

import numpy as np

from glm_kernels.dropout.keys import DropoutKey, drop_threshold

_ROUNDS = 7
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = np.uint64(0xFFFFFFFF)


def philox(key: int, counter: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Philox4x32-7 of a 64-bit key and four broadcastable arrays of 32-bit words -> uint32 four times.

    Source: Salmon et al. (2011), section 3.3.
    """
    k0, k1 = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
    c0, c1, c2, c3 = (np.asarray(word).astype(np.uint64) & _WORD for word in counter)
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = second >> np.uint64(32) ^ c1 ^ np.uint64(k0), second & _WORD
        c2, c3 = first >> np.uint64(32) ^ c3 ^ np.uint64(k1), first & _WORD
        k0, k1 = k0 + _KEY_STEPS[0] & 0xFFFFFFFF, k1 + _KEY_STEPS[1] & 0xFFFFFFFF
    return tuple(word.astype(np.uint32) for word in np.broadcast_arrays(c0, c1, c2, c3))


def attention_kept(
    probability: float, token_key: np.ndarray, token: np.ndarray, *, heads: range, key: DropoutKey
) -> np.ndarray:
    """Which attention weights the kernels keep: int64 [T], int32 [T] of RowKeys -> bool [heads, query T, key T]."""
    low, high = (token_key[None, :, None] >> shift & 0xFFFFFFFF for shift in (0, 32))
    head = np.array(heads)[:, None, None]
    word = philox(key.philox_key(), (low, high, token[None, None, :], head))[0]
    return word >= np.uint32(drop_threshold(probability) & 0xFFFFFFFF)


def hidden_kept(probability: float, token_key: np.ndarray, width: int, *, key: DropoutKey) -> np.ndarray:
    """Which features of hidden states the kernels keep: int64 [T] of RowKeys -> bool [T, width]."""
    low, high = (token_key[:, None] >> shift & 0xFFFFFFFF for shift in (0, 32))
    quads = np.arange(-(-width // 4))[None, :]
    words = np.stack(philox(key.philox_key(), (low, high, quads, 0)), axis=-1)
    return words.reshape(len(token_key), -1)[:, :width] >= np.uint32(drop_threshold(probability) & 0xFFFFFFFF)

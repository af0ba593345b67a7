"""A hash of a parameter that does not depend on who holds which part of it.

Each element is hashed together with its place, and the hashes are added modulo 2**64. So the ranks of any layout hash
what they hold, their sums add up to that of the whole parameter, and neither a changed bit nor two values that have
changed places can hide in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from megatron_glm.checkpoint.format import KINDS, Fragment

FINGERPRINT_MODULUS = 1 << 64
_ELEMENTS_AT_ONCE = 1 << 18  # two megabytes of int64 stay in the cache
# The finalizer of splitmix64 (Steele, Lea and Flood, 2014), as the signed numbers that torch has.
_GOLDEN, _FIRST, _SECOND = (
    value - FINGERPRINT_MODULUS for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def fingerprint(fragment: Fragment) -> int:
    """The hashes of a fragment's elements, added: 0 <= n < 2**64. Computed where its values lie."""
    values = fragment.values.detach().contiguous()
    width = values.numel() // fragment.rows
    grid, rows_at_once = values.view(fragment.rows, width), max(1, _ELEMENTS_AT_ONCE // max(1, width))
    total = 0
    for row in range(0, fragment.rows, rows_at_once):
        for column in range(0, width, _ELEMENTS_AT_ONCE):
            part = grid[row : row + rows_at_once, column : column + _ELEMENTS_AT_ONCE]
            total += _sum_of_hashes(part, fragment.start + row * fragment.stride + column, fragment.stride)
    return total % FINGERPRINT_MODULUS


def fingerprints(fragments: Iterable[Fragment]) -> dict[str, int]:
    """What some fragments add to the fingerprint of each `name/kind`."""
    total: Counter[str] = Counter()
    for fragment in fragments:
        total[fingerprint_key(fragment.name, fragment.kind)] += fingerprint(fragment)
    return {key: value % FINGERPRINT_MODULUS for key, value in total.items()}


def fingerprint_key(name: str, kind: str) -> str:
    """What the fingerprint of one kind of a parameter is called."""
    return f"{name}/{kind}"


def fingerprint_keys(names: Iterable[str], kinds: Iterable[str] = KINDS) -> Iterator[str]:
    """The keys of all parameters."""
    kinds = tuple(kinds)
    return (fingerprint_key(name, kind) for name in names for kind in kinds)


def added_up(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The fingerprints of whole parameters from those of all their parts."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return {key: value % FINGERPRINT_MODULUS for key, value in total.items()}


def _sum_of_hashes(values: Tensor, start: int, stride: int) -> int:
    """Of fp32 [rows, width], the first of which is element `start`."""
    columns = torch.arange(start, start + values.shape[1], dtype=torch.int64, device=values.device)
    rows = torch.arange(values.shape[0], dtype=torch.int64, device=values.device) * stride
    bits = values.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    hashes = (rows[:, None] + columns).mul_(_GOLDEN).add_(bits)
    hashes.bitwise_xor_(_shifted(hashes, 30)).mul_(_FIRST)
    hashes.bitwise_xor_(_shifted(hashes, 27)).mul_(_SECOND)
    hashes.bitwise_xor_(_shifted(hashes, 31))
    return int(hashes.sum())


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shifted to the right as unsigned numbers are: torch's own shift repeats the sign."""
    return (values >> bits).bitwise_and_((1 << (64 - bits)) - 1)

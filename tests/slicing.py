"""The slow tests in slices, of which every commit runs another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

SLICES = 6

T = TypeVar("T")


def slice_of(items: Sequence[T], commit: str) -> list[T]:
    """Every sixth of the items; the commit's hash, in hexadecimal digits, tells which."""
    return list(items[int(commit, 16) % SLICES :: SLICES])

"""The comparison of a fast tokenizer with its reference, text by text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatron_glm.tokenizer.base import Tokenizer

_BATCH = 256  # documents compared at a time


@dataclass(frozen=True)
class Difference:
    """Where a fast tokenizer is wrong: the number of the text and of the token in it, and both ids there."""

    text: int
    token: int
    expected: int | str
    found: int | str


@dataclass(frozen=True)
class Comparison:
    """What came of it; where the library could not load the tokenizer, there was nothing to compare."""

    loaded: bool
    difference: Difference | None = None


def compare_engines(reference: Tokenizer, fast: Tokenizer | None, texts: Sequence[str]) -> Comparison:
    """The first difference between the ids of two tokenizers; `fast` is as `accelerated` gives it."""
    if fast is None:
        return Comparison(loaded=False)
    for first in range(0, len(texts), _BATCH):
        batch = texts[first : first + _BATCH]
        rows = zip(reference.encode_batch(batch), fast.encode_batch(batch), strict=True)
        for text, (expected, found) in enumerate(rows, first):
            if not np.array_equal(expected, found):
                return Comparison(True, Difference(text, *_first_difference(expected.tolist(), found.tolist())))
    return Comparison(loaded=True)


def _first_difference(expected: list[int], found: list[int]) -> tuple[int, int | str, int | str]:
    """Where two rows of ids part, and both ids there."""
    shared = min(len(expected), len(found))
    place = next((i for i in range(shared) if expected[i] != found[i]), shared)
    return place, *(ids[place] if place < len(ids) else "none" for ids in (expected, found))

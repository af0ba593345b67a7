"""Whether a run may use a fast tokenizer: only after it gave the reference's ids on documents of the run itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np

from data_tools.documents import DocumentReader
from data_tools.estimate import sample_parts
from data_tools.inputs import InputFile
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.fast import accelerated, fast_library

_SAMPLE_BYTES = 4_000_000  # about a second of the reference
_BATCH = 256  # documents compared at a time


@dataclass(frozen=True)
class Choice:
    """What a run encodes with.

    Args:
        use: `accelerated(tokenizer)` instead of the tokenizer.
        engine: the package whose engine is used; its version may decide ids.
        note: what the user should know, in one line.
    """

    use: bool
    engine: str | None = None
    note: str | None = None


def choose(tokenizer: Tokenizer, texts: Sequence[str]) -> Choice:
    """Compare the fast engine of a tokenizer, where there is one, with the reference on each of the texts."""
    if not texts or (library := fast_library(tokenizer)) is None:
        return Choice(use=False)
    if find_spec(library) is None:
        return Choice(
            use=False,
            note=f"{library} is not installed, which tokenizes many times as fast; "
            "pip install 'megatron_glm[fast]' gives the same ids sooner",
        )
    if (fast := accelerated(tokenizer)) is None:
        return Choice(
            use=False, note=f"{_shown(library)} cannot load this tokenizer; going on with the slower reference"
        )
    for first in range(0, len(texts), _BATCH):
        batch = texts[first : first + _BATCH]
        if (difference := _first_difference(tokenizer.encode_flat(batch), fast.encode_flat(batch))) is not None:
            text, place, expected, found = difference
            return Choice(
                use=False,
                note=f"{_shown(library)} is wrong on document {first + text} of a sample of {len(texts)}: "
                f"token {place} is {found}, by {_shown('tokenizers')} {expected}; going on with the slower reference",
            )
    return Choice(use=True, engine=library)


def sample_texts(inputs: Sequence[InputFile], text_key: str, limit_bytes: int = _SAMPLE_BYTES) -> list[str]:
    """Documents spread evenly over the inputs, until they have `limit_bytes` of UTF-8; malformed ones left out.

    Raises:
        DataError: an input cannot be read.
    """
    parts = list(sample_parts(inputs))
    share = limit_bytes / max(1, sum(limit for _, limit in parts))
    texts = []
    for part, limit in parts:
        left = limit * share
        for text, _ in DocumentReader(part, text_key, lambda malformed: None):
            texts.append(text)
            left -= len(text.encode())
            if left <= 0:
                break
    return texts


def _first_difference(
    reference: tuple[np.ndarray, np.ndarray], fast: tuple[np.ndarray, np.ndarray]
) -> tuple[int, int, int | str, int | str] | None:
    """Number of the first text that differs, place in it, and both ids there."""
    if all(np.array_equal(*each) for each in zip(reference, fast, strict=True)):
        return None
    pairs = zip(*(_rows(*each) for each in (reference, fast)), strict=True)
    text, (expected, found) = next((text, pair) for text, pair in enumerate(pairs) if pair[0] != pair[1])
    shared = min(len(expected), len(found))
    place = next((i for i in range(shared) if expected[i] != found[i]), shared)
    return text, place, *(ids[place] if place < len(ids) else "none" for ids in (expected, found))


def _rows(ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [row.tolist() for row in np.split(ids, np.cumsum(lengths))[:-1]]


def _shown(library: str) -> str:
    return f"{library} {version(library)}"

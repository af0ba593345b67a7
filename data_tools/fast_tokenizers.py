"""Whether a run may use a fast tokenizer: only after it gave the reference's ids on documents of the run itself."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from itertools import accumulate, pairwise
from math import ceil

from data_tools.documents import DocumentReader
from data_tools.engine_proof import Comparison, compare_engines
from data_tools.estimate import sample_parts
from data_tools.inputs import InputFile
from megatron_glm.extras import install_command
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.fast import accelerated, fast_library

# A four-thousandth of the inputs, as the reference takes about a hundred times as long: 0.2 seconds for a megabyte.
_SAMPLE_SHARE = 4000
_LEAST_SAMPLE, _LARGEST_SAMPLE = 2_000_000, 16_000_000  # bytes

Compare = Callable[[list[Sequence[str]]], Iterable[Comparison]]


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


def choose(tokenizer: Tokenizer, texts: Sequence[str], *, compare: Compare | None = None, shares: int = 1) -> Choice:
    """Compare the fast engine of a tokenizer, where there is one, with the reference on each of the texts.

    Args:
        compare: gives what `compare_engines` does, for each share of the texts; default: in this process.
        shares: into how many, of about as many characters each, the texts are cut.
    """
    if not texts or (library := fast_library(tokenizer)) is None:
        return Choice(use=False)
    if find_spec(library) is None:
        return Choice(
            use=False,
            note=f"{library} is not installed, which tokenizes many times as fast; "
            f"{install_command('fast')} gives the same ids sooner",
        )
    bounds = _bounds(texts, shares)
    parts = [texts[start:end] for start, end in pairwise(bounds)]
    comparisons = compare(parts) if compare else [compare_engines(tokenizer, accelerated(tokenizer), texts)]
    for first, comparison in zip(bounds, comparisons, strict=False):
        if not comparison.loaded:
            return Choice(
                use=False, note=f"{_shown(library)} cannot load this tokenizer; going on with the slower reference"
            )
        if (wrong := comparison.difference) is not None:
            return Choice(
                use=False,
                note=f"{_shown(library)} is wrong on document {first + wrong.text} of a sample of {len(texts)}: "
                f"token {wrong.token} is {wrong.found}, by {_shown('tokenizers')} {wrong.expected}; "
                "going on with the slower reference",
            )
    return Choice(use=True, engine=library)


def sample_texts(inputs: Sequence[InputFile], text_key: str, limit_bytes: int | None = None) -> list[str]:
    """Documents spread evenly over the inputs, until they have `limit_bytes` of UTF-8; malformed ones left out.

    Of a document that is longer than what is left to its place, the beginning is taken: it proves as much.

    Args:
        limit_bytes: default: a four-thousandth of the inputs, from 2 to 16 MB.

    Raises:
        DataError: an input cannot be read.
    """
    if limit_bytes is None:
        share = sum(file.bytes for file in inputs) // _SAMPLE_SHARE
        limit_bytes = min(max(share, _LEAST_SAMPLE), _LARGEST_SAMPLE)
    parts = list(sample_parts(inputs))
    share = limit_bytes / max(1, sum(limit for _, limit in parts))
    texts = []
    for part, limit in parts:
        left = limit * share
        for text, _ in DocumentReader(part, text_key, lambda malformed: None):
            texts.append(text[: ceil(left)])
            left -= len(texts[-1].encode())
            if left <= 0:
                break
    return texts


def _bounds(texts: Sequence[str], shares: int) -> list[int]:
    """Where to cut texts into parts of about as many characters each; first and last included."""
    ends = list(accumulate(map(len, texts)))
    return [0, *(bisect_right(ends, ends[-1] * share // shares) for share in range(1, shares)), len(texts)]


def _shown(library: str) -> str:
    return f"{library} {version(library)}"

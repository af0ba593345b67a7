"""Many .bin/.idx pairs, read as one sequence of documents.

A corpus is hundreds of pairs. They are opened when they are read, and only the last ones stay open, so that
neither file descriptors nor time at the start grow with the corpus.
"""

from __future__ import annotations

import resource
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from megatron_glm.data.indexed import IndexedFile
from megatron_glm.data.pair_format import bin_path
from megatron_glm.errors import DataError


def pairs_within(descriptors: int) -> int:
    """How many pairs a split may keep open where a process may have so many descriptors, -1 for any number.

    A pair takes two, and there are two splits. At least 64 stay for everything else, of the usual 1024 a quarter.
    """
    return 192 if descriptors < 0 else max(1, min(192, (descriptors - 64) // 4))


OPEN_PAIRS = pairs_within(resource.getrlimit(resource.RLIMIT_NOFILE)[0])  # of all sources of a split together


@dataclass(frozen=True)
class Pair:
    """A pair, by its path without extension, and what it must hold when it is opened."""

    prefix: Path
    documents: int
    tokens: int


class PairSet:
    """The documents of several pairs, in the order of the pairs.

    Args:
        pairs: they may be empty ones, or none.
        ends_with_eos: whether the last token of each document is eos.
        has_sentences: whether a sequence is a sentence; else it is a document.
        num_ids: stored ids must be smaller.
        advice: what to do when the files are not what they should be; ends an error.
        open_pairs: how many stay open, at most.

    Attributes:
        shard_documents, shard_tokens: what comes before each pair, int64 [pairs + 1], the last the total.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        *,
        ends_with_eos: bool,
        has_sentences: bool,
        num_ids: int,
        advice: str,
        open_pairs: int = OPEN_PAIRS,
    ):
        self.ends_with_eos = ends_with_eos
        self.has_sentences = has_sentences
        self._pairs = tuple(pairs)
        self._num_ids = num_ids
        self._advice = advice
        self.shard_documents = np.cumsum([0, *(pair.documents for pair in pairs)], dtype=np.int64)
        self.shard_tokens = np.cumsum([0, *(pair.tokens for pair in pairs)], dtype=np.int64)
        # For single places: bisect in a list takes a tenth of NumPy's searchsorted.
        self._first_documents, self._first_tokens = self.shard_documents.tolist(), self.shard_tokens.tolist()
        self.num_documents, self.num_tokens = self._first_documents[-1], self._first_tokens[-1]
        # Of a function that does not know the object: a cycle would keep files open after its last use.
        self._file = lru_cache(maxsize=open_pairs)(partial(_open, self._pairs, advice))

    def document_start(self, k: int) -> int:
        """Where document k begins, in tokens; 0 <= k <= num_documents, the last is num_tokens."""
        if not 0 <= k <= self.num_documents:
            raise IndexError(f"document {k} lies outside 0 … {self.num_documents}")
        if k == self.num_documents:
            return self.num_tokens
        shard = _holder(self._first_documents, k)
        return self._first_tokens[shard] + self._file(shard).document_start(k - self._first_documents[shard])

    def find_document(self, token: int) -> int:
        """The document that holds a token; 0 <= token < num_tokens."""
        if not 0 <= token < self.num_tokens:
            raise IndexError(f"token {token} lies outside range({self.num_tokens})")
        shard = _holder(self._first_tokens, token)
        return self._first_documents[shard] + self._file(shard).find_document(token - self._first_tokens[shard])

    def locate_document(self, k: int) -> tuple[int, int]:
        """Which pair holds document k, and its number there; 0 <= k < num_documents."""
        if not 0 <= k < self.num_documents:
            raise IndexError(f"document {k} lies outside range({self.num_documents})")
        shard = _holder(self._first_documents, k)
        return shard, k - self._first_documents[shard]

    def prefix(self, shard: int) -> Path:
        """The path of a pair, without extension."""
        return self._pairs[shard].prefix

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """The ids of a range of tokens, across pairs: int32 [stop - start], a copy.

        Raises:
            DataError: an id outside the vocabulary, or a file that was cut: opening has read neither.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start} … {stop} lie outside 0 … {self.num_tokens}")
        parts = []
        while start < stop:
            shard = _holder(self._first_tokens, start)
            offset, end = self._first_tokens[shard], min(stop, self._first_tokens[shard + 1])
            parts.append(self._file(shard).tokens(start - offset, end - offset))
            self._check_ids(parts[-1], shard, start - offset)
            start = end
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.empty(0, np.int32), *parts])

    def sequence_ends(self, start: int, stop: int, document: int | None = None) -> np.ndarray:
        """Where sequences end in a range, across pairs, ascending: int64 [s], tokens in (start, stop].

        Args:
            document: one that begins at `start` or before it, near by: the search is in it.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start} … {stop} lie outside 0 … {self.num_tokens}")
        holder, place = (None, None) if document is None else self.locate_document(document)
        parts = [np.empty(0, np.int64)]
        while start < stop:
            shard = _holder(self._first_tokens, start)
            offset, end = self._first_tokens[shard], min(stop, self._first_tokens[shard + 1])
            near = place if shard == holder else None
            parts.append(offset + self._file(shard).sequence_ends(start - offset, end - offset, near))
            start = end
        return np.concatenate(parts)

    def _check_ids(self, ids: np.ndarray, shard: int, first: int) -> None:
        # Read without a sign a negative id is a huge one: one comparison, on every window of a run.
        if ids.view(np.uint32).max(initial=0) >= self._num_ids:
            place = int((ids.view(np.uint32) >= self._num_ids).argmax())
            raise DataError(
                f"{bin_path(self.prefix(shard))}: token {first + place} is id {ids[place]}, "
                f"ids must be 0 … {self._num_ids - 1}; {self._advice}"
            )


def _open(pairs: tuple[Pair, ...], advice: str, shard: int) -> IndexedFile:
    pair = pairs[shard]
    file = IndexedFile(pair.prefix)
    if (file.num_documents, file.num_tokens) != (pair.documents, pair.tokens):
        raise DataError(
            f"{pair.prefix}: {file.num_documents} documents and {file.num_tokens} tokens, "
            f"expected {pair.documents} and {pair.tokens}; {advice}"
        )
    return file


def _holder(starts: list[int], place: int) -> int:
    """The pair that holds a place: the last that starts at or before it, as those with an equal start are empty."""
    return bisect_right(starts, place) - 1

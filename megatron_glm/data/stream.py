"""A corpus as one long line of tokens: [CLS], a document, eos, [CLS], the next document, …

The [CLS] before each document is not stored in the shards, and neither is the eos where a source has
none: both are virtual. Document k starts at (its first stored token) + k × (virtual tokens a
document), so any place of the stream is found by a binary search over document starts that lie in the
shards' index already. Nothing here grows with the corpus.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Protocol

import numpy as np

from megatron_glm.objective.window import Window
from megatron_glm.tokenizer.base import SpecialTokens


class Documents(Protocol):
    """What a stream reads: `shards.ShardSet`, or a stand-in of a test."""

    num_documents: int
    num_tokens: int
    ends_with_eos: bool
    has_sentences: bool
    shard_documents: np.ndarray  # before each shard, int64 [shards + 1]
    shard_tokens: np.ndarray

    def document_start(self, k: int) -> int: ...

    def locate_document(self, k: int) -> tuple[int, int]: ...

    def prefix(self, shard: int) -> Path: ...

    def tokens(self, start: int, stop: int) -> np.ndarray: ...

    def sequence_ends(self, start: int, stop: int, document: int) -> np.ndarray: ...


class Stream:
    """The stream of one source.

    Args:
        shards: the source's documents; they may be empty ones.
        special: the ids of [CLS] and eos.
        sentences: look up where sentences end, if the source stores it.

    Attributes:
        length: stream tokens, virtual ones included.
    """

    def __init__(self, shards: Documents, special: SpecialTokens, *, sentences: bool = False):
        self._shards = shards
        self._special = special
        self._sentences = sentences and shards.has_sentences
        self._virtual = 1 if shards.ends_with_eos else 2  # tokens of a document that are not stored
        self._shard_starts = shards.shard_tokens + self._virtual * shards.shard_documents
        self.length = shards.num_tokens + self._virtual * shards.num_documents

    def pieces(self, start: int, stop: int) -> Window:
        """The documents' pieces in [start, stop), each with a [CLS] in front.

        A piece that begins inside a document gets a [CLS] of its own; only the first can, so the window
        has at most stop − start + 1 tokens. An empty range gives a window of no pieces.

        Raises:
            IndexError: not 0 <= start <= stop <= length.
        """
        if not 0 <= start <= stop <= self.length:
            raise IndexError(f"stream range {start}..{stop} lies outside 0..{self.length}")
        if start == stop:
            no_ends = np.empty(0, bool) if self._sentences else None
            return Window(np.empty(0, np.int32), np.zeros(1, np.int32), no_ends)
        first = self._document_at(start)
        bounds = [self._start_of(first)]  # of the documents in the window, and of the one after
        while bounds[-1] < stop:
            bounds.append(self._start_of(first + len(bounds)))

        # The own [CLS] takes the place before `start`, so that every piece is a range of the stream.
        origin = start if bounds[0] == start else start - 1
        starts = np.array([origin, *bounds[1:-1], stop], np.int64) - origin
        tokens = np.empty(stop - origin, np.int32)
        stored = np.ones(stop - origin, bool)
        tokens[starts[:-1]] = self._special.cls
        stored[starts[:-1]] = False
        if not self._shards.ends_with_eos:
            ends = np.array([bound for bound in bounds[1:] if bound <= stop], np.int64) - 1 - origin
            tokens[ends] = self._special.eos
            stored[ends] = False
        begin = self._stored_before(start, first, bounds[0], bounds[1])
        end = self._stored_before(stop, first + len(bounds) - 2, bounds[-2], bounds[-1])
        tokens[stored] = self._shards.tokens(begin, end)
        sentence_ends = self._sentence_ends(stored, begin, end, first) if self._sentences else None
        return Window(tokens, starts.astype(np.int32), sentence_ends)

    def documents(self, start: int, stop: int) -> range:
        """The documents of the pieces of [start, stop), one each."""
        if start == stop:
            return range(0)
        return range(self._document_at(start), self._document_at(stop - 1) + 1)

    def stored_at(self, document: int) -> tuple[Path, int]:
        """The pair that holds a document, without extension, and its number there."""
        shard, number = self._shards.locate_document(document)
        return self._shards.prefix(shard), number

    def _sentence_ends(self, stored: np.ndarray, begin: int, end: int, document: int) -> np.ndarray:
        """Which tokens of a window end a sentence: bool [n]; `stored` ones are the tokens [begin, end)."""
        last_of_sentence = np.zeros(end - begin, bool)
        last_of_sentence[self._shards.sequence_ends(begin, end, document) - begin - 1] = True
        ends = np.zeros(len(stored), bool)
        ends[stored] = last_of_sentence
        return ends

    def _document_at(self, place: int) -> int:
        # The shard first: a search through the starts of all documents would open a shard at every step.
        shard = int(self._shard_starts.searchsorted(place, side="right")) - 1
        low, high = self._shards.shard_documents[shard : shard + 2].tolist()
        return bisect_right(range(high), place, low, key=self._start_of) - 1

    def _start_of(self, document: int) -> int:
        return self._shards.document_start(document) + self._virtual * document

    def _stored_before(self, place: int, document: int, start: int, stop: int) -> int:
        """How many stored tokens precede `place`, which lies in [start, stop], the range of `document`."""
        inside = min(max(place - start - 1, 0), stop - start - self._virtual)
        return start - self._virtual * document + inside

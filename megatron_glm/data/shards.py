"""The shards of a split, read as one sequence of documents.

A corpus is hundreds of .bin/.idx pairs. Opening a set reads the manifest and asks for the size of
every file, nothing more; pairs are mapped when they are read, and only the last ones stay mapped,
so that neither file descriptors nor time at the start grow with the corpus.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from megatron_glm.data.indexed import IndexedFile, bin_path, idx_path
from megatron_glm.data.manifest import SplitName, read_manifest
from megatron_glm.errors import DataError

_OPEN_PAIRS = 256  # two file descriptors each: well below the usual limit of 1024


class ShardSet:
    """One split of a data directory (`manifest.json`, `train/`, `held_out/`).

    Attributes:
        shard_documents, shard_tokens: what comes before each shard, int64 [shards + 1], the last the total.

    Raises:
        DataError: no manifest, or a file is missing or of another size than the manifest says.
    """

    def __init__(self, directory: Path, split: SplitName):
        manifest = read_manifest(directory)
        self.manifest = manifest.model_dump()
        self.ends_with_eos = manifest.append_eos
        self._num_ids = manifest.tokenizer.vocab_size
        self._shards = manifest.split(split).shards
        self._prefixes = [directory / split / shard.name for shard in self._shards]
        self.shard_documents = np.cumsum([0, *(shard.documents for shard in self._shards)], dtype=np.int64)
        self.shard_tokens = np.cumsum([0, *(shard.tokens for shard in self._shards)], dtype=np.int64)
        self.num_documents, self.num_tokens = int(self.shard_documents[-1]), int(self.shard_tokens[-1])
        for prefix, shard in zip(self._prefixes, self._shards, strict=True):
            _check_size(bin_path(prefix), shard.bin_bytes)
            _check_size(idx_path(prefix), shard.idx_bytes)
        self._file = lru_cache(maxsize=_OPEN_PAIRS)(self._open)

    def document_start(self, k: int) -> int:
        """Where document k begins, in tokens; 0 <= k <= num_documents, the last is num_tokens."""
        if not 0 <= k <= self.num_documents:
            raise IndexError(f"document {k} lies outside 0 … {self.num_documents}")
        if k == self.num_documents:
            return self.num_tokens
        shard = _holder(self.shard_documents, k)
        return int(self.shard_tokens[shard]) + self._file(shard).document_start(k - int(self.shard_documents[shard]))

    def find_document(self, token: int) -> int:
        """The document that holds a token; 0 <= token < num_tokens."""
        if not 0 <= token < self.num_tokens:
            raise IndexError(f"token {token} lies outside range({self.num_tokens})")
        shard = _holder(self.shard_tokens, token)
        return int(self.shard_documents[shard]) + self._file(shard).find_document(token - int(self.shard_tokens[shard]))

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """The ids of a range of tokens, across shards: int32 [stop - start], a copy.

        Raises:
            DataError: an id outside the vocabulary: opening has not read the ids, so a damaged file shows here.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start} … {stop} lie outside 0 … {self.num_tokens}")
        parts = []
        while start < stop:
            shard = _holder(self.shard_tokens, start)
            offset, end = int(self.shard_tokens[shard]), min(stop, int(self.shard_tokens[shard + 1]))
            parts.append(self._file(shard).tokens(start - offset, end - offset))
            self._check_ids(parts[-1], shard, start - offset)
            start = end
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.empty(0, np.int32), *parts])

    def _check_ids(self, ids: np.ndarray, shard: int, first: int) -> None:
        # Read without a sign a negative id is a huge one: one comparison, on every window of a run.
        if ids.view(np.uint32).max(initial=0) >= self._num_ids:
            place = int((ids.view(np.uint32) >= self._num_ids).argmax())
            raise DataError(
                f"{bin_path(self._prefixes[shard])}: token {first + place} is id {ids[place]}, "
                f"ids must be 0 … {self._num_ids - 1}; copy the directory again, python -m data_tools.verify --full "
                "tells what else is damaged"
            )

    def _open(self, shard: int) -> IndexedFile:
        file, expected = IndexedFile(self._prefixes[shard]), self._shards[shard]
        if (file.num_documents, file.num_tokens) != (expected.documents, expected.tokens):
            raise DataError(
                f"{self._prefixes[shard]}: {file.num_documents} documents and {file.num_tokens} tokens, "
                f"the manifest says {expected.documents} and {expected.tokens}; copy the directory again"
            )
        return file


def _holder(starts: np.ndarray, place: int) -> int:
    """The shard that holds a place: the last that starts at or before it, as those with an equal start are empty."""
    return int(starts.searchsorted(place, side="right")) - 1


def _check_size(path: Path, expected: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}, the manifest lists it; copy the directory again") from error
    if size != expected:
        raise DataError(f"{path}: {size} bytes, the manifest says {expected}; copy the directory again")

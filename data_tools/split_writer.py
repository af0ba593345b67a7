"""Writes the documents of one split into shards of bounded size, with the place each came from."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np

from megatron_glm.data.indexed_writer import IndexedWriter
from megatron_glm.data.manifest import Shard
from megatron_glm.data.pair_format import bin_path, idx_path
from megatron_glm.data.provenance import origins_path
from megatron_glm.files import Files


class SplitWriter:
    """Appends documents to `directory/00000.bin`, `00001.bin`, …; no document, no shard.

    A shard holds at most `shard_tokens` tokens, unless it is a single longer document.

    Args:
        input: which input of the run the documents come from.
        files: flush what is written.
    """

    def __init__(self, directory: Path, dtype: np.dtype, vocab_size: int, shard_tokens: int, input: int, files: Files):
        self._directory, self._dtype, self._vocab_size = directory, dtype, vocab_size
        self._shard_tokens, self._input, self._files = shard_tokens, input, files
        self._shard: _ShardWriter | None = None
        self._shards: list[Shard] = []
        self.num_tokens = 0

    def add_documents(
        self, tokens: np.ndarray, lengths: np.ndarray, sequences_per_document: np.ndarray, places: np.ndarray
    ) -> None:
        """Append documents.

        Args:
            tokens: integer ids of all, one after another [n].
            lengths: tokens of each sequence, n in all [s].
            sequences_per_document: s in all [d].
            places: where each document begins in its input, int64 [d].

        Raises:
            DataError: an id is outside the vocabulary.
        """
        sequence_ends = np.cumsum(sequences_per_document)
        token_ends = np.concatenate(([0], np.cumsum(lengths)))[sequence_ends]
        done = sequence = token = 0
        while done < len(places):
            shard = self._shard_for(int(token_ends[done]) - token)
            stop = int(token_ends.searchsorted(token + self._shard_tokens - shard.num_tokens, side="right"))
            stop = max(stop, done + 1)  # a document longer than a shard has one of its own
            next_sequence, next_token = int(sequence_ends[stop - 1]), int(token_ends[stop - 1])
            shard.add(
                tokens[token:next_token],
                lengths[sequence:next_sequence],
                sequences_per_document[done:stop],
                places[done:stop],
            )
            done, sequence, token = stop, next_sequence, next_token
        self.num_tokens += token

    def close(self) -> list[Shard]:
        """Finish the last shard; the shards of the split, in order."""
        self._close_shard()
        return self._shards

    def _shard_for(self, num_tokens: int) -> _ShardWriter:
        """The shard that the next document, of so many tokens, goes into."""
        if self._shard and self._shard.num_tokens + num_tokens > self._shard_tokens:
            self._close_shard()
        if self._shard is None:
            prefix = self._directory / f"{len(self._shards):05d}"
            pair = IndexedWriter(prefix, self._dtype, vocab_size=self._vocab_size, files=self._files)
            self._shard = _ShardWriter(prefix, pair, self._files)
        return self._shard

    def _close_shard(self) -> None:
        if self._shard:
            self._shards.append(self._shard.close(self._input))
            self._shard = None


class _ShardWriter:
    """One shard: the pair and its origins."""

    def __init__(self, prefix: Path, pair: IndexedWriter, files: Files):
        self._prefix, self._pair, self._files, self._digest = prefix, pair, files, sha256()
        self._origins = self._files.open(origins_path(prefix))

    @property
    def num_tokens(self) -> int:
        return self._pair.num_tokens

    def add(self, tokens: np.ndarray, lengths: np.ndarray, counts: np.ndarray, places: np.ndarray) -> None:
        self._pair.add_documents(tokens, lengths, counts)
        block = places.astype("<i8").tobytes()
        self._digest.update(block)
        self._files.write(self._origins, block)

    def close(self, input: int) -> Shard:
        self._pair.close()
        self._files.sync(self._origins)
        self._origins.close()
        return Shard(
            name=self._prefix.name,
            input=input,
            documents=self._pair.num_documents,
            tokens=self._pair.num_tokens,
            bin_bytes=bin_path(self._prefix).stat().st_size,
            idx_bytes=idx_path(self._prefix).stat().st_size,
            origins_bytes=origins_path(self._prefix).stat().st_size,
            bin_sha256=self._pair.bin_sha256,
            idx_sha256=self._pair.idx_sha256,
            origins_sha256=self._digest.hexdigest(),
        )

"""Writes the documents of one split into shards of bounded size."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from megatron_glm.data.indexed import IndexedWriter, bin_path, idx_path
from megatron_glm.data.manifest import Shard
from megatron_glm.files import sha256_of


class SplitWriter:
    """Appends documents to `directory/00000.bin`, `00001.bin`, …; no document, no shard.

    A shard holds at most `shard_tokens` tokens, unless it is a single longer document.
    """

    def __init__(self, directory: Path, dtype: np.dtype, vocab_size: int, shard_tokens: int):
        self._directory, self._dtype, self._vocab_size = directory, dtype, vocab_size
        self._shard_tokens = shard_tokens
        self._writer: IndexedWriter | None = None
        self._shards: list[Shard] = []
        self.num_tokens = 0

    def add(self, tokens: np.ndarray) -> None:
        """Append a document: integer ids [n]."""
        if self._writer and self._writer.num_tokens + len(tokens) > self._shard_tokens:
            self._close_shard(self._writer)
        if self._writer is None:
            self._writer = IndexedWriter(self._prefix(), self._dtype, vocab_size=self._vocab_size)
        self._writer.add_document(tokens)
        self.num_tokens += len(tokens)

    def close(self) -> list[Shard]:
        """Finish the last shard; the shards of the split, in order."""
        if self._writer:
            self._close_shard(self._writer)
        return self._shards

    def _prefix(self) -> Path:
        return self._directory / f"{len(self._shards):05d}"

    def _close_shard(self, writer: IndexedWriter) -> None:
        prefix = self._prefix()
        writer.close()
        self._shards.append(
            Shard(
                name=prefix.name,
                documents=writer.num_documents,
                tokens=writer.num_tokens,
                bin_bytes=bin_path(prefix).stat().st_size,
                idx_bytes=idx_path(prefix).stat().st_size,
                bin_sha256=sha256_of(bin_path(prefix)),
                idx_sha256=sha256_of(idx_path(prefix)),
            )
        )
        self._writer = None

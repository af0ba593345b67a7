"""Writes a .bin/.idx pair: the same bytes as megatron-core's builder."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from megatron_glm.data.pair_format import DTYPES, bin_path, idx_path, index_header
from megatron_glm.errors import DataError
from megatron_glm.files import Files, atomic_file

_MAX_LENGTH = 2**31 - 1
_BLOCK = 1 << 20  # entries of the index that are made at a time


class IndexedWriter:
    """Writes one pair, document by document; the .idx appears only when the pair is whole.

    Args:
        prefix: path of the pair without its extensions; neither file may exist.
        dtype: uint16 or int32, see `dtype_for`.
        vocab_size: ids must be smaller; default: whatever `dtype` can hold.
        files: may put off the flushing to the disk, which is the caller's then.

    As a context manager it closes the pair, or removes what it wrote when the block fails.
    """

    def __init__(self, prefix: Path, dtype: np.dtype, *, vocab_size: int | None = None, files: Files | None = None):
        self._dtype = np.dtype(dtype).newbyteorder("<")
        if self._dtype not in DTYPES.values():
            raise ValueError(f"token type must be uint16 or int32, got {np.dtype(dtype)}")
        self._prefix = prefix
        largest = int(np.iinfo(self._dtype).max)
        self._num_ids = largest + 1 if vocab_size is None else min(vocab_size, largest + 1)
        self._lengths = array("i")
        self._documents = array("q", [0])
        self.num_tokens = 0
        self._files = files or Files()
        self._bin = self._files.open(bin_path(prefix))
        self._bin_digest, self._idx_digest = sha256(), sha256()

    @property
    def num_documents(self) -> int:
        return len(self._documents) - 1

    @property
    def bin_sha256(self) -> str:
        """SHA-256 of what is written to the .bin, in hexadecimal: taken on the way, so that nothing is read again."""
        return self._bin_digest.hexdigest()

    @property
    def idx_sha256(self) -> str:
        """SHA-256 of the .idx of a closed pair, in hexadecimal."""
        return self._idx_digest.hexdigest()

    def add_document(self, tokens: np.ndarray, lengths: Sequence[int] | None = None) -> None:
        """Append one document: integer ids [n], possibly none.

        Args:
            lengths: tokens of each sequence of the document, n in all; default: one sequence, or
                none when the document is empty (as Megatron's preprocess_data does).

        Raises:
            DataError: an id is outside the vocabulary, or a sequence is too long for the format.
        """
        tokens = np.asarray(tokens)
        if lengths is None:
            lengths = [tokens.size] if tokens.size else []
        if tokens.ndim != 1 or sum(lengths) != tokens.size or min(lengths, default=0) < 0:
            raise ValueError(f"sequences of {list(lengths)} tokens do not tile a document of shape {tokens.shape}")
        if max(lengths, default=0) > _MAX_LENGTH:
            raise DataError(
                f"{self._prefix}: document {self.num_documents} has a sequence of {max(lengths)} tokens, "
                f"at most {_MAX_LENGTH} fit the format; split the document"
            )
        if tokens.size:
            self._check_ids(tokens, np.array([tokens.size]))
            self._write_ids(tokens)
        self._lengths.extend(lengths)
        self._documents.append(len(self._lengths))
        self.num_tokens += tokens.size

    def add_documents(self, tokens: np.ndarray, lengths: np.ndarray, sequences_per_document: np.ndarray) -> None:
        """Append many documents at once, as `add_document` does one by one.

        Args:
            tokens: integer ids of all documents, one after another [n].
            lengths: tokens of each sequence, n in all [s].
            sequences_per_document: s in all [d].

        Raises:
            DataError: an id is outside the vocabulary, or a sequence is too long for the format; nothing is written.
        """
        lengths, counts = np.asarray(lengths, np.int64), np.asarray(sequences_per_document, np.int64)
        if min(lengths.min(initial=0), counts.min(initial=0)) < 0 or lengths.sum() != tokens.size:
            raise ValueError(f"{len(lengths)} sequences of {lengths.sum()} tokens do not tile {tokens.size} tokens")
        if counts.sum() != len(lengths):
            raise ValueError(f"{len(counts)} documents of {counts.sum()} sequences, there are {len(lengths)}")
        last_sequences = np.cumsum(counts)
        if (longest := int(lengths.max(initial=0))) > _MAX_LENGTH:
            document = int(last_sequences.searchsorted(lengths.argmax(), side="right"))
            raise DataError(
                f"{self._prefix}: document {self.num_documents + document} has a sequence of {longest} tokens, "
                f"at most {_MAX_LENGTH} fit the format; split the document"
            )
        if tokens.size:
            self._check_ids(tokens, np.concatenate(([0], np.cumsum(lengths)))[last_sequences])
            self._write_ids(tokens)
        self._documents.frombytes((last_sequences + len(self._lengths)).tobytes())
        self._lengths.frombytes(lengths.astype(np.intc).tobytes())
        self.num_tokens += tokens.size

    def close(self) -> None:
        """Flush the .bin to the disk and publish the .idx."""
        self._files.sync(self._bin)
        self._bin.close()
        header = index_header(self._dtype, len(self._lengths), self.num_documents)
        with atomic_file(idx_path(self._prefix), self._files) as stream:
            for part in chain([header], self._length_blocks(), self._offset_blocks(), self._document_blocks()):
                self._idx_digest.update(part)
                self._files.write(stream, part)

    def abandon(self) -> None:
        """Remove what was written."""
        self._bin.close()
        bin_path(self._prefix).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _write_ids(self, tokens: np.ndarray) -> None:
        block = memoryview(tokens.astype(self._dtype))
        self._bin_digest.update(block)
        self._files.write(self._bin, block)

    def _length_blocks(self) -> Iterator[bytes]:
        for lengths in _blocks(self._lengths):
            yield lengths.astype("<i4").tobytes()

    def _offset_blocks(self) -> Iterator[bytes]:
        start = 0
        for lengths in _blocks(self._lengths):
            # One int64 sum: adding int32 scalars one by one is how Megatron's merge overflowed.
            ends = start + np.cumsum(lengths, dtype=np.int64)
            yield ((ends - lengths) * self._dtype.itemsize).astype("<i8").tobytes()
            start = int(ends[-1])

    def _document_blocks(self) -> Iterator[bytes]:
        for sequences in _blocks(self._documents):
            yield sequences.astype("<i8").tobytes()

    def _check_ids(self, tokens: np.ndarray, ends: np.ndarray) -> None:
        """Refuse ids [n] outside the vocabulary; `ends`, in tokens, tell which of the documents [d] holds one."""
        # NumPy would store 70 000 as 4 464 without a word.
        if tokens.dtype.kind not in "iu":
            raise ValueError(f"token ids must be integers, got {tokens.dtype}")
        # Without a sign a negative id is larger than any other, so that one pass finds both.
        if int(tokens.view(f"u{tokens.itemsize}").max()) >= self._num_ids:
            place = int(((tokens < 0) | (tokens >= self._num_ids)).argmax())
            document = self.num_documents + int(ends.searchsorted(place, side="right"))
            raise DataError(
                f"{self._prefix}: document {document} holds id {tokens[place]}, "
                f"ids must be 0 … {self._num_ids - 1}; was it written by this tokenizer?"
            )


def _blocks(values: array) -> Iterator[np.ndarray]:
    """The entries of an array in pieces, so that what is made of them needs little memory."""
    for start in range(0, len(values), _BLOCK):
        yield np.array(values[start : start + _BLOCK])

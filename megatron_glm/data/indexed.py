"""Reads a .bin/.idx pair by position, never mapped, whoever of Megatron's family has written it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from megatron_glm.data.file_array import FileArray, ReadOnlyFile
from megatron_glm.data.pair_format import DTYPES, HEADER, MAGIC, VERSION, bin_path, idx_path
from megatron_glm.errors import DataError

_SEQUENCES = 64  # that a window may hold; read at once where their number is not known
_CHUNK = 1 << 20  # entries that a full check holds in memory at a time


class IndexedFile:
    """One pair, open for reading; its two files are closed with the object.

    Opening looks at the header, the sizes and the ends only, whatever the size; `check` looks at
    everything. Every array returned is a copy, so it outlives the object.

    Raises:
        DataError: a file is missing, or the two do not fit each other; on every read, a file has been cut since.
    """

    def __init__(self, prefix: Path):
        self._idx_path, self._bin_path = idx_path(prefix), bin_path(prefix)
        index, data = _open(self._idx_path), _open(self._bin_path)
        self.dtype, self.num_sequences, entries = self._read_header(index)
        self.num_documents = entries - 1
        self._data_bytes = data.size
        if self._data_bytes % self.dtype.itemsize:
            raise DataError(f"{self._bin_path}: {data.size} bytes are no whole number of {self.dtype} ids")
        self.num_tokens = self._data_bytes // self.dtype.itemsize
        self._tokens = FileArray(data, 0, self.num_tokens, self.dtype)
        starts = np.cumsum([HEADER.size, 4 * self.num_sequences, 8 * self.num_sequences]).tolist()
        self._lengths = FileArray(index, starts[0], self.num_sequences, "<i4")
        self._offsets = FileArray(index, starts[1], self.num_sequences, "<i8")
        self._documents = FileArray(index, starts[2], entries, "<i8")
        self._check_ends()

    def document_start(self, k: int) -> int:
        """Where document k begins, in tokens; 0 <= k <= num_documents, the last is num_tokens."""
        if not 0 <= k <= self.num_documents:
            raise IndexError(f"document {k} lies outside 0 … {self.num_documents}")
        sequence = self._documents[k]
        if sequence == self.num_sequences:
            return self.num_tokens
        if 0 <= sequence < self.num_sequences:
            start, rest = divmod(self._offsets[sequence], self.dtype.itemsize)
            if 0 <= start <= self.num_tokens and not rest:
                return start
        raise self._damaged(f"the start of document {k} lies outside the file")

    def find_document(self, token: int) -> int:
        """The document that holds a token, by binary search in the file; 0 <= token < num_tokens."""
        if not 0 <= token < self.num_tokens:
            raise IndexError(f"token {token} lies outside range({self.num_tokens})")
        # Of several with one start all but the last are empty, hence bisect_right.
        sequence = bisect_right(self._offsets, token * self.dtype.itemsize) - 1
        document = bisect_right(self._documents, sequence) - 1
        found = 0 <= document < self.num_documents
        if not (found and self.document_start(document) <= token < self.document_start(document + 1)):
            raise self._damaged(f"its offsets are not in order around token {token}")
        return document

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """The ids of a range of tokens: int32 [stop - start], a copy."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start} … {stop} lie outside 0 … {self.num_tokens}")
        return self._tokens.read(start, stop).astype(np.int32)

    def sequence_ends(self, start: int, stop: int, document: int | None = None) -> np.ndarray:
        """Where sequences end in a range, ascending: int64 [s], tokens in (start, stop].

        A binary search, and a read of what is found.

        Args:
            document: one that begins at `start` or before it, near by: the search is in it.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start} … {stop} lie outside 0 … {self.num_tokens}")
        # A sequence ends where the next one begins, and the last one with the file.
        low, high = 0, self.num_sequences
        if document is not None:
            low, high = self._documents[document], self._documents[document + 1]
            if not 0 <= low <= high <= self.num_sequences:
                raise self._damaged(f"document {document} lies outside the file")
        first = bisect_right(self._offsets, start * self.dtype.itemsize, low, high)
        begins, size = self._offsets.read(first, first + _SEQUENCES), _SEQUENCES
        while len(begins) == size and begins[-1] <= stop * self.dtype.itemsize:
            size *= 2
            begins = self._offsets.read(first, first + size)
        ends, rest = np.divmod(begins, self.dtype.itemsize)
        if rest.any() or (np.diff(ends) < 0).any():
            raise self._damaged(f"its offsets are not in order around token {start}")
        ends = ends[(ends > start) & (ends <= stop)]
        if stop == self.num_tokens:
            ends = np.append(ends, stop)
        return ends[np.diff(ends, prepend=start) > 0]  # a sequence without tokens ends where the one before it does

    def lengths(self) -> Iterator[np.ndarray]:
        """The tokens of every sequence, a bounded number at a time: int32 [k]."""
        for _, lengths in _chunks(self._lengths):
            yield lengths

    def documents(self) -> Iterator[np.ndarray]:
        """The sequences up to the end of every document, a bounded number at a time: int64 [k]."""
        for start, entries in _chunks(self._documents):
            yield entries if start else entries[1:]

    def check(self, vocab_size: int | None = None, eos: int | None = None) -> None:
        """Look at every entry and every id.

        Args:
            vocab_size: ids must be smaller; default: only negative ones are refused.
            eos: the id that every document must end with; default: any.

        Raises:
            DataError: the first thing that is wrong.
        """
        self.check_structure()
        if eos is not None:
            self._check_eos(eos)
        for start, ids in _chunks(self._tokens):
            outside = ids < 0 if vocab_size is None else (ids < 0) | (ids >= vocab_size)
            if outside.any():
                place = int(outside.argmax())
                allowed = "0 or more" if vocab_size is None else f"0 … {vocab_size - 1}"
                raise DataError(
                    f"{self._bin_path}: token {start + place} is id {ids[place]}, ids must be {allowed}; "
                    "write the data again with the right tokenizer"
                )

    def check_structure(self) -> None:
        """Look at every length, offset and document, not at the ids.

        Raises:
            DataError: the first thing that is wrong.
        """
        self._check_sequences()
        self._check_documents()

    def _read_header(self, index: ReadOnlyFile) -> tuple[np.dtype, int, int]:
        if index.size < HEADER.size:
            raise self._damaged(f"{index.size} bytes are shorter than the header of {HEADER.size}")
        magic, version, code, sequences, entries = HEADER.unpack(index.read(0, HEADER.size))
        if magic != MAGIC:
            raise DataError(f"{self._idx_path}: not an index of Megatron (starts with {magic!r}, expected {MAGIC!r})")
        if version != VERSION:
            raise DataError(f"{self._idx_path}: version {version} is not known (expected {VERSION})")
        if code not in DTYPES:
            raise DataError(
                f"{self._idx_path}: token type code {code} cannot be read (4 = int32 and 8 = uint16 can); "
                "write the data again with python -m data_tools.preprocess"
            )
        expected = HEADER.size + 12 * sequences + 8 * entries
        if entries < 1 or index.size != expected:
            self._refuse_relatives(index.size, expected, sequences)
            raise self._damaged(
                f"its {sequences} sequences and {entries - 1} documents need {expected} bytes, there are {index.size}"
            )
        return DTYPES[code], sequences, entries

    def _refuse_relatives(self, size: int, expected: int, sequences: int) -> None:
        """Formats with the same magic, told by their size."""
        if size == expected + sequences:
            raise DataError(
                f"{self._idx_path}: holds the modes of multimodal sequences; only text can be read, "
                "write it again without them"
            )
        if size == HEADER.size - 8 + 12 * sequences:
            raise DataError(
                f"{self._idx_path}: an index of fairseq, which has no documents; "
                "write the data again with python -m data_tools.preprocess"
            )

    def _check_ends(self) -> None:
        if self._documents[0] != 0 or self._documents[-1] != self.num_sequences:
            raise self._damaged(
                f"its documents cover sequences {self._documents[0]} … {self._documents[-1]}, "
                f"expected 0 … {self.num_sequences}"
            )
        end = 0
        if self.num_sequences:
            end = self._offsets[-1] + self._lengths[-1] * self.dtype.itemsize
            if self._offsets[0] != 0:
                raise self._damaged(f"the first sequence starts at byte {self._offsets[0]}, expected 0")
        if end != self._data_bytes:
            raise DataError(
                f"{self._bin_path}: {self._data_bytes} bytes, but its index ends at byte {end}; "
                "one of the two is cut or belongs to another pair"
            )

    def _check_sequences(self) -> None:
        expected = 0
        for start, lengths in _chunks(self._lengths):
            if (lengths < 0).any():
                raise self._damaged(f"sequence {start + int((lengths < 0).argmax())} has a negative length")
            ends = expected + np.cumsum(lengths, dtype=np.int64) * self.dtype.itemsize
            begins = np.concatenate(([expected], ends[:-1]))
            offsets = self._offsets.read(start, start + len(lengths))
            if (wrong := offsets != begins).any():
                place = int(wrong.argmax())
                raise self._damaged(
                    f"sequence {start + place} starts at byte {offsets[place]}, "
                    f"the lengths before it sum to {begins[place]}"
                )
            expected = int(ends[-1])

    def _check_documents(self) -> None:
        last = 0
        for start, entries in _chunks(self._documents):
            # Compared, not subtracted: a difference beyond 2**63 would count as a step forward.
            backwards = entries < np.concatenate(([last], entries[:-1]))
            if backwards.any():
                raise self._damaged(f"entry {start + int(backwards.argmax())} of its documents goes backwards")
            last = int(entries[-1])

    def _check_eos(self, eos: int) -> None:
        for start, before in _chunks(self._documents):
            after = self._documents.read(start + 1, start + 1 + len(before))
            before = before[: len(after)]  # the last entry begins no document
            if not len(after):
                break
            last = after - 1  # the last sequence of each document; both checks above have passed
            without = (after == before) | (self._lengths.take(last) == 0)
            if not without.any():
                ends = self._offsets.take(last) // self.dtype.itemsize + self._lengths.take(last)
                without = self._tokens.take(ends - 1) != eos
            if without.any():
                raise DataError(
                    f"{self._bin_path}: document {start + int(without.argmax())} does not end with eos (id {eos}); "
                    "write the data again"
                )

    def _damaged(self, what: str) -> DataError:
        return DataError(f"{self._idx_path}: damaged: {what}; write or copy the data again")


def _open(path: Path) -> ReadOnlyFile:
    try:
        return ReadOnlyFile(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror} (a .bin and an .idx make a pair)") from error


def _chunks(values: FileArray) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(values), _CHUNK):
        yield start, values.read(start, start + _CHUNK)

"""Megatron's .bin/.idx pair: the token ids of many documents in one file, and where each begins.

The .bin file holds the ids back to back and nothing else, so a range of the corpus is a range of
the file. The .idx file (magic MMIDIDX, version 1, all little-endian) holds, after a header of 34
bytes, the length of every sequence in tokens (int32), its offset in bytes (int64), and the number
of sequences before each document (int64, one entry more than there are documents). A sequence is
whatever its writer chose: a sentence, or a whole document; an empty document has none.

What is written here equals the output of megatron-core's builder, byte for byte.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from megatron_glm.data.file_array import FileArray, ReadOnlyFile
from megatron_glm.errors import DataError
from megatron_glm.files import Files, atomic_file

_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type code, sequences, documents + 1
# The forks of Megatron disagree about all other codes: 6 and 7 were float64, float32 or uint16.
_DTYPES = {4: np.dtype("<i4"), 8: np.dtype("<u2")}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_UINT16_BELOW = 65_500  # Megatron's own threshold: ids of 65 500 and above go into int32
_MAX_LENGTH = 2**31 - 1
_SEQUENCES = 64  # that a window may hold; read at once where their number is not known
_CHUNK = 1 << 20  # entries that a full check holds in memory at a time


def dtype_for(vocab_size: int) -> np.dtype:
    """The type that a vocabulary of `vocab_size` ids is stored in: uint16 below 65 500, else int32."""
    return np.dtype(np.uint16 if vocab_size < _UINT16_BELOW else np.int32)


def bin_path(prefix: Path) -> Path:
    """The file of the token ids of a pair."""
    return prefix.with_name(f"{prefix.name}.bin")


def idx_path(prefix: Path) -> Path:
    """The file of the lengths, offsets and documents of a pair."""
    return prefix.with_name(f"{prefix.name}.idx")


def index_header(dtype: np.dtype, sequences: int, documents: int) -> bytes:
    """The first bytes of an .idx."""
    return _HEADER.pack(_MAGIC, _VERSION, _CODES[dtype], sequences, documents + 1)


class IndexedWriter:
    """Writes one pair, document by document; the .idx appears only when the pair is whole.

    Args:
        prefix: path of the pair without its extensions; neither file may exist.
        dtype: uint16 or int32, see `dtype_for`.
        vocab_size: ids must be smaller; default: whatever `dtype` can hold.

    As a context manager it closes the pair, or removes what it wrote when the block fails.
    """

    def __init__(self, prefix: Path, dtype: np.dtype, *, vocab_size: int | None = None):
        self._dtype = np.dtype(dtype).newbyteorder("<")
        if self._dtype not in _CODES:
            raise ValueError(f"token type must be uint16 or int32, got {np.dtype(dtype)}")
        self._prefix = prefix
        largest = int(np.iinfo(self._dtype).max)
        self._num_ids = largest + 1 if vocab_size is None else min(vocab_size, largest + 1)
        self._lengths = array("i")
        self._documents = array("q", [0])
        self.num_tokens = 0
        self._files = Files()
        self._bin = self._files.open(bin_path(prefix))

    @property
    def num_documents(self) -> int:
        return len(self._documents) - 1

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
            self._files.write(self._bin, memoryview(tokens.astype(self._dtype)))
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
            self._files.write(self._bin, memoryview(tokens.astype(self._dtype)))
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
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self._num_ids:
            place = int(((tokens < 0) | (tokens >= self._num_ids)).argmax())
            document = self.num_documents + int(ends.searchsorted(place, side="right"))
            raise DataError(
                f"{self._prefix}: document {document} holds id {tokens[place]}, "
                f"ids must be 0 … {self._num_ids - 1}; was it written by this tokenizer?"
            )


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
        starts = np.cumsum([_HEADER.size, 4 * self.num_sequences, 8 * self.num_sequences]).tolist()
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
        if index.size < _HEADER.size:
            raise self._damaged(f"{index.size} bytes are shorter than the header of {_HEADER.size}")
        magic, version, code, sequences, entries = _HEADER.unpack(index.read(0, _HEADER.size))
        if magic != _MAGIC:
            raise DataError(f"{self._idx_path}: not an index of Megatron (starts with {magic!r}, expected {_MAGIC!r})")
        if version != _VERSION:
            raise DataError(f"{self._idx_path}: version {version} is not known (expected {_VERSION})")
        if code not in _DTYPES:
            raise DataError(
                f"{self._idx_path}: token type code {code} cannot be read (4 = int32 and 8 = uint16 can); "
                "write the data again with python -m data_tools.preprocess"
            )
        expected = _HEADER.size + 12 * sequences + 8 * entries
        if entries < 1 or index.size != expected:
            self._refuse_relatives(index.size, expected, sequences)
            raise self._damaged(
                f"its {sequences} sequences and {entries - 1} documents need {expected} bytes, there are {index.size}"
            )
        return _DTYPES[code], sequences, entries

    def _refuse_relatives(self, size: int, expected: int, sequences: int) -> None:
        """Formats with the same magic, told by their size."""
        if size == expected + sequences:
            raise DataError(
                f"{self._idx_path}: holds the modes of multimodal sequences; only text can be read, "
                "write it again without them"
            )
        if size == _HEADER.size - 8 + 12 * sequences:
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
            steps = np.diff(entries, prepend=last)
            if (steps < 0).any():
                raise self._damaged(f"entry {start + int((steps < 0).argmax())} of its documents goes backwards")
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


def _blocks(values: array) -> Iterator[np.ndarray]:
    """The entries of an array in pieces, so that what is made of them needs little memory."""
    for start in range(0, len(values), _CHUNK):
        yield np.array(values[start : start + _CHUNK])

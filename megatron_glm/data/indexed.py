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
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

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
            self._check_ids(tokens)
            self._files.write(self._bin, memoryview(tokens.astype(self._dtype)))
        self._lengths.extend(lengths)
        self._documents.append(len(self._lengths))
        self.num_tokens += tokens.size

    def close(self) -> None:
        """Flush the .bin to the disk and publish the .idx."""
        self._files.sync(self._bin)
        self._bin.close()
        lengths = np.array(self._lengths, dtype="<i4")
        # One int64 sum: adding int32 scalars one by one is how Megatron's merge overflowed.
        offsets = np.zeros(len(lengths), dtype="<i8")
        np.cumsum(lengths[:-1], dtype=np.int64, out=offsets[1:])
        offsets *= self._dtype.itemsize
        header = _HEADER.pack(_MAGIC, _VERSION, _CODES[self._dtype], len(lengths), len(self._documents))
        documents = np.array(self._documents, dtype="<i8")
        with atomic_file(idx_path(self._prefix), self._files) as stream:
            for part in (header, lengths.tobytes(), offsets.tobytes(), documents.tobytes()):
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

    def _check_ids(self, tokens: np.ndarray) -> None:
        # NumPy would store 70 000 as 4 464 without a word.
        if tokens.dtype.kind not in "iu":
            raise ValueError(f"token ids must be integers, got {tokens.dtype}")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self._num_ids:
            raise DataError(
                f"{self._prefix}: document {self.num_documents} holds id {low if low < 0 else high}, "
                f"ids must be 0 … {self._num_ids - 1}; was it written by this tokenizer?"
            )


class IndexedFile:
    """One pair, memory-mapped for reading.

    Opening looks at the header, the sizes and the ends only, whatever the size; `check` looks at
    everything. Every array returned is a copy, so it outlives the maps, which go with the object.

    Raises:
        DataError: a file is missing, or the two do not fit each other.
    """

    def __init__(self, prefix: Path):
        self._idx_path, self._bin_path = idx_path(prefix), bin_path(prefix)
        index, data = _map(self._idx_path), _map(self._bin_path)
        self.dtype, self.num_sequences, entries = self._read_header(index)
        self.num_documents = entries - 1
        self._data_bytes = len(data)
        if self._data_bytes % self.dtype.itemsize:
            raise DataError(f"{self._bin_path}: {len(data)} bytes are no whole number of {self.dtype} ids")
        self.num_tokens = self._data_bytes // self.dtype.itemsize
        self._tokens = data.view(self.dtype)
        # These views are not aligned (34 bytes come before them), so NumPy's vector functions copy
        # them whole: only single entries and bounded chunks may be touched.
        ends = np.cumsum([_HEADER.size, 4 * self.num_sequences, 8 * self.num_sequences, 8 * entries]).tolist()
        self._lengths = index[ends[0] : ends[1]].view("<i4")
        self._offsets = index[ends[1] : ends[2]].view("<i8")
        self._documents = index[ends[2] : ends[3]].view("<i8")
        self._check_ends()

    def document_start(self, k: int) -> int:
        """Where document k begins, in tokens; 0 <= k <= num_documents, the last is num_tokens."""
        if not 0 <= k <= self.num_documents:
            raise IndexError(f"document {k} lies outside 0 … {self.num_documents}")
        sequence = int(self._documents[k])
        if sequence == self.num_sequences:
            return self.num_tokens
        if 0 <= sequence < self.num_sequences:
            start, rest = divmod(int(self._offsets[sequence]), self.dtype.itemsize)
            if 0 <= start <= self.num_tokens and not rest:
                return start
        raise self._damaged(f"the start of document {k} lies outside the file")

    def find_document(self, token: int) -> int:
        """The document that holds a token, by binary search in the map; 0 <= token < num_tokens."""
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
        return self._tokens[start:stop].astype(np.int32)

    def check(self, vocab_size: int | None = None, eos: int | None = None) -> None:
        """Look at every entry and every id.

        Args:
            vocab_size: ids must be smaller; default: only negative ones are refused.
            eos: the id that every document must end with; default: any.

        Raises:
            DataError: the first thing that is wrong.
        """
        self._check_sequences()
        self._check_documents()
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

    def _read_header(self, index: np.ndarray) -> tuple[np.dtype, int, int]:
        if len(index) < _HEADER.size:
            raise self._damaged(f"{len(index)} bytes are shorter than the header of {_HEADER.size}")
        magic, version, code, sequences, entries = _HEADER.unpack(index[: _HEADER.size].tobytes())
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
        if entries < 1 or len(index) != expected:
            raise self._damaged(
                f"its {sequences} sequences and {entries - 1} documents need {expected} bytes, there are {len(index)}"
            )
        return _DTYPES[code], sequences, entries

    def _check_ends(self) -> None:
        if self._documents[0] != 0 or self._documents[-1] != self.num_sequences:
            raise self._damaged(
                f"its documents cover sequences {self._documents[0]} … {self._documents[-1]}, "
                f"expected 0 … {self.num_sequences}"
            )
        end = 0
        if self.num_sequences:
            end = int(self._offsets[-1]) + int(self._lengths[-1]) * self.dtype.itemsize
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
            wrong = self._offsets[start : start + len(lengths)] != begins
            if wrong.any():
                place = int(wrong.argmax())
                raise self._damaged(
                    f"sequence {start + place} starts at byte {self._offsets[start + place]}, "
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
        for start, after in _chunks(self._documents[1:]):
            last = after - 1  # the last sequence of each document; both checks above have passed
            without = (after == self._documents[start : start + len(after)]) | (self._lengths[last] == 0)
            if not without.any():
                ends = self._offsets[last] // self.dtype.itemsize + self._lengths[last]
                without = self._tokens[ends - 1] != eos
            if without.any():
                raise DataError(
                    f"{self._bin_path}: document {start + int(without.argmax())} does not end with eos (id {eos}); "
                    "write the data again"
                )

    def _damaged(self, what: str) -> DataError:
        return DataError(f"{self._idx_path}: damaged: {what}; write or copy the data again")


def _map(path: Path) -> np.ndarray:
    """The bytes of a file, mapped: uint8 [size]."""
    try:
        if path.stat().st_size == 0:  # cannot be mapped; a shard of empty documents has such a .bin
            return np.empty(0, np.uint8)
        return np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror} (a .bin and an .idx make a pair)") from error


def _chunks(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(values), _CHUNK):
        yield start, values[start : start + _CHUNK]

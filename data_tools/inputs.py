"""Corpus files: which kinds there are, and where they can be cut so that processes share one file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from io import BufferedReader
from stat import S_ISREG
from typing import BinaryIO, Literal

from data_tools.columnar import chunks
from data_tools.compressed import gzip_stream, zstd_stream
from data_tools.input_paths import expand, refuse_repeated
from megatron_glm.errors import DataError


class Documents(Enum):
    """How documents lie in a file."""

    PARAGRAPHS = "parted by blank lines"
    LINES = "a document a line"
    JSON = "a JSON object a line"
    ROWS = "a document a row"


_Decompress = Callable[[BinaryIO, str], BufferedReader]
_TEXT_KINDS = {".txt": Documents.PARAGRAPHS, ".jsonl": Documents.JSON, ".json": Documents.JSON}
_COMPRESSIONS: dict[str, _Decompress | None] = {"": None, ".gz": gzip_stream, ".zst": zstd_stream}
_COLUMNAR_KINDS = (".parquet", ".arrow")
_KINDS: dict[str, tuple[Documents, _Decompress | None]] = {
    kind + compression: (documents, decompress)
    for kind, documents in _TEXT_KINDS.items()
    for compression, decompress in _COMPRESSIONS.items()
} | dict.fromkeys(_COLUMNAR_KINDS, (Documents.ROWS, None))
_KNOWN_SUFFIXES = f"{', '.join(_TEXT_KINDS)} (each also .gz or .zst), {', '.join(_COLUMNAR_KINDS)}"


@dataclass(frozen=True)
class InputFile:
    """One corpus file; `path` as the user gave it, or as it is below the directory that was given."""

    path: str
    bytes: int
    documents: Documents
    decompress: _Decompress | None

    @property
    def unit(self) -> Literal["byte", "row"]:
        """What the places of its documents count; bytes of a compressed file are those of its content."""
        return "row" if self.documents is Documents.ROWS else "byte"


@dataclass(frozen=True)
class Range:
    """A part of an input that one process reads: bytes [start, stop), or rows; the whole of a compressed file.

    Args:
        extent: of rows: the bytes of the file that hold them, first and end.
    """

    input: InputFile
    start: int
    stop: int
    extent: tuple[int, int] | None = None

    @property
    def bytes(self) -> int:
        """How much of the file it is; the parts of a file add up to its size."""
        first, end = self.extent or (self.start, self.stop)
        return end - first


def open_inputs(paths: Sequence[str], *, line_documents: bool) -> list[InputFile]:
    """The kind and size of every input file, in the order of `paths`.

    A directory stands for the files below it and a pattern for what it matches, both sorted by path.

    Raises:
        DataError: a pattern or a directory has no file, a file is given twice, is missing, empty or of an unknown
            suffix, or a directory is no corpus.
    """
    files = [file for path in paths for file in expand(path)]
    refuse_repeated(files)
    return [_open_input(file, line_documents) for file in files]


def whole(file: InputFile) -> Range:
    """All of a file as one part.

    Raises:
        DataError: a damaged columnar file, or the library for it is not installed.
    """
    if file.unit == "row":
        return Range(file, 0, chunks(file.path)[-1].stop, (0, file.bytes))
    return Range(file, 0, file.bytes)


def cut(file: InputFile, part_bytes: int) -> list[Range]:
    """Parts of about `part_bytes` bytes that begin and end between documents.

    Raises:
        DataError: a damaged columnar file, or the library for it is not installed.
    """
    if file.unit == "row":
        return _cut_rows(file, part_bytes)
    if file.decompress is not None:
        return [whole(file)]
    ranges, start = [], 0
    with open(file.path, "rb") as stream:
        while start < file.bytes:
            stop = _next_boundary(stream, min(start + part_bytes, file.bytes), file.documents)
            ranges.append(Range(file, start, stop))
            start = stop
    return ranges


def cut_at(file: InputFile, position: int, part_bytes: int) -> Range | None:
    """About `part_bytes` bytes of a plain text file from the first document after `position` on; None at its end."""
    with open(file.path, "rb") as stream:
        start = _next_boundary(stream, position, file.documents) if position else 0
        if start >= file.bytes:
            return None
        return Range(file, start, _next_boundary(stream, min(start + part_bytes, file.bytes), file.documents))


def _open_input(path: str, line_documents: bool) -> InputFile:
    suffix = next((suffix for suffix in _KINDS if path.endswith(suffix)), None)
    if suffix is None:
        if not os.path.exists(path):
            raise DataError(f"--input: '{path}': {os.strerror(errno.ENOENT)}")
        raise DataError(f"--input: '{path}' has an unknown suffix, known are {_KNOWN_SUFFIXES}")
    documents, decompress = _KINDS[suffix]
    if line_documents and documents is Documents.PARAGRAPHS:
        documents = Documents.LINES
    try:
        path.encode("utf-8")  # the manifest and the quarantine name it
    except UnicodeEncodeError as error:
        raise DataError(f"--input: the name {os.fsencode(path)!r} is no UTF-8; rename the file") from error
    try:
        if not S_ISREG(os.stat(path).st_mode):  # to open a pipe would wait for its writer
            raise DataError(f"--input: '{path}' is no regular file, which can be read twice; write one")
        with open(path, "rb"):
            size = os.stat(path).st_size
    except OSError as error:
        raise DataError(f"--input: '{path}': {error.strerror}") from error
    if size == 0:
        raise DataError(f"--input: '{path}' is empty; leave it out or fetch it again")
    return InputFile(path, size, documents, decompress)


def _cut_rows(file: InputFile, part_bytes: int) -> list[Range]:
    """Runs of whole chunks: of the fewest that reach `part_bytes`."""
    ranges: list[Range] = []
    start = first = 0
    for chunk in chunks(file.path):
        if chunk.end_byte - first >= part_bytes or chunk.end_byte == file.bytes:
            ranges.append(Range(file, start, chunk.stop, (first, chunk.end_byte)))
            start, first = chunk.stop, chunk.end_byte
    return ranges


def _next_boundary(stream: BinaryIO, position: int, documents: Documents) -> int:
    """The first place after `position` (or just at it, in luck) where a document may begin, or the file's end."""
    stream.seek(position - 1)  # a cut that falls on the start of a line stays there
    stream.readline()
    if documents is Documents.PARAGRAPHS:
        while (line := stream.readline()) and line.strip():
            pass
    return stream.tell()

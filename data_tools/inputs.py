"""Corpus files: which kinds there are, and where they can be cut so that processes share one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from glob import glob, has_magic
from pathlib import Path
from typing import BinaryIO

from data_tools.compressed import gzip_lines, zstd_lines
from megatron_glm.errors import DataError


class Documents(Enum):
    """How documents lie in the lines of a file."""

    PARAGRAPHS = "parted by blank lines"
    LINES = "a document a line"
    JSON = "a JSON object a line"


_Lines = Callable[[BinaryIO, str], Iterator[bytes]]
_KINDS: dict[str, tuple[Documents, _Lines | None]] = {
    ".txt": (Documents.PARAGRAPHS, None),
    ".jsonl": (Documents.JSON, None),
    ".jsonl.gz": (Documents.JSON, gzip_lines),
    ".jsonl.zst": (Documents.JSON, zstd_lines),
}


@dataclass(frozen=True)
class InputFile:
    """One corpus file; `path` as the user gave it."""

    path: str
    bytes: int
    documents: Documents
    decompress: _Lines | None


@dataclass(frozen=True)
class Range:
    """A part of an input that one process reads: bytes [start, stop); the whole of a compressed file."""

    input: InputFile
    start: int
    stop: int


def open_inputs(paths: Sequence[str], *, line_documents: bool) -> list[InputFile]:
    """The kind and size of every input; a pattern stands for the files it matches, sorted by path.

    Raises:
        DataError: a pattern matches nothing, or a file is missing, empty, a directory, or of an unknown suffix.
    """
    return [_open_input(file, line_documents) for path in paths for file in _expand(path)]


def cut(file: InputFile, part_bytes: int) -> list[Range]:
    """Parts of about `part_bytes` bytes that begin and end between documents."""
    if file.decompress is not None:
        return [Range(file, 0, file.bytes)]
    ranges, start = [], 0
    with open(file.path, "rb") as stream:
        while start < file.bytes:
            stop = _next_boundary(stream, min(start + part_bytes, file.bytes), file.documents)
            ranges.append(Range(file, start, stop))
            start = stop
    return ranges


def cut_at(file: InputFile, position: int, part_bytes: int) -> Range | None:
    """About `part_bytes` bytes of a plain file from the first document after `position` on; None at its end."""
    with open(file.path, "rb") as stream:
        start = _next_boundary(stream, position, file.documents) if position else 0
        if start >= file.bytes:
            return None
        return Range(file, start, _next_boundary(stream, min(start + part_bytes, file.bytes), file.documents))


def _expand(path: str) -> list[str]:
    if not has_magic(path) or Path(path).exists():  # a name may hold brackets
        return [path]
    # Sorted by code points: the order of a directory differs between file systems, and of a locale between users.
    if not (found := sorted(glob(path, recursive=True))):
        raise DataError(f"--input: no file matches '{path}'; ** stands for any number of directories")
    return found


def _open_input(path: str, line_documents: bool) -> InputFile:
    suffix = next((suffix for suffix in _KINDS if path.endswith(suffix)), None)
    if suffix is None:
        raise DataError(f"--input: '{path}' has an unknown suffix, known are {', '.join(_KINDS)}")
    documents, decompress = _KINDS[suffix]
    if line_documents and documents is Documents.PARAGRAPHS:
        documents = Documents.LINES
    try:
        with open(path, "rb"):
            size = Path(path).stat().st_size
    except OSError as error:
        raise DataError(f"--input: '{path}': {error.strerror}") from error
    if size == 0:
        raise DataError(f"--input: '{path}' is empty; leave it out or fetch it again")
    return InputFile(path, size, documents, decompress)


def _next_boundary(stream: BinaryIO, position: int, documents: Documents) -> int:
    """The first place after `position` (or just at it, in luck) where a document may begin, or the file's end."""
    stream.seek(position - 1)  # a cut that falls on the start of a line stays there
    stream.readline()
    if documents is Documents.PARAGRAPHS:
        while (line := stream.readline()) and line.strip():
            pass
    return stream.tell()

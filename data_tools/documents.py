"""The documents of a part of a corpus file, one string each with its place, and where a bad one stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import orjson

from data_tools.columnar import read_texts
from data_tools.decoding import UnreadableError, decode, text_of_json, value_under
from data_tools.inputs import Documents, Range
from megatron_glm.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 16  # of lines that are read at once
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Malformed:
    """A document that cannot be read.

    Args:
        place: where it begins, as of a document that can be read.
        reason: "invalid UTF-8", "broken JSON", "no object", "no text key", "text is no string" or "null".
        raw: its bytes as they stand in the file, without the end of the last line; of a row, its text alone.
    """

    place: int
    reason: str
    raw: bytes


class DocumentReader:
    """Iterates over the documents of a part of a file: (text, place).

    A place is the byte of the file where the document begins (of the decompressed content, if it is compressed)
    or the number of its row, from 0.

    Args:
        text_key: of the text in a JSON object or row; `a.b` is b in the object a, unless a key has that whole name.
        on_malformed: is given each document that cannot be read, and reading goes on; without, the first raises.

    Attributes:
        bytes_read: bytes of the file that were consumed so far (compressed ones, if it is).
        repaired: documents in which lone surrogates were replaced by U+FFFD.

    Raises:
        DataError: a malformed document, with file and line, unless there is `on_malformed`; in any case truncated
            or damaged data of a compressed or columnar file, and a columnar one without strings under `text_key`.
    """

    def __init__(self, part: Range, text_key: str, on_malformed: Callable[[Malformed], None] | None = None):
        self._part, self._text_key, self._on_malformed = part, text_key, on_malformed
        self.bytes_read = 0
        self.repaired = 0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        match self._part.input.documents:
            case Documents.JSON:
                return self._json_documents()
            case Documents.LINES:
                return self._line_documents()
            case Documents.PARAGRAPHS:
                return self._paragraphs()
            case Documents.ROWS:
                return self._rows()

    def _blocks(self) -> Iterator[tuple[list[bytes], int]]:
        """Some whole lines at a time, with their ends, and the place of the first."""
        source, place = self._part.input, self._part.start
        packed = source.decompress is not None
        with open(source.path, "rb") as raw:
            raw.seek(place)
            stream = source.decompress(raw, source.path) if packed else raw
            while packed or place < self._part.stop:
                lines = _read_lines(stream, _BLOCK_BYTES if packed else min(_BLOCK_BYTES, self._part.stop - place))
                if not lines:
                    return
                end = place + sum(map(len, lines))
                self.bytes_read = raw.tell() if packed else end - self._part.start
                if place == 0 and lines[0].startswith(_BYTE_ORDER_MARK):
                    lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
                    place = len(_BYTE_ORDER_MARK)
                yield lines, place
                place = end

    def _json_documents(self) -> Iterator[tuple[str, int]]:
        loads, find = orjson.loads, value_under(self._text_key)
        for lines, place in self._blocks():
            for line in lines:
                try:
                    text = find(loads(line))
                except (orjson.JSONDecodeError, KeyError, TypeError):
                    text = None
                if type(text) is not str:
                    text = None if line.isspace() else self._unusual_json(line, place)
                if text is not None:
                    yield text, place
                place += len(line)

    def _line_documents(self) -> Iterator[tuple[str, int]]:
        for lines, place in self._blocks():
            for line in lines:
                if (text := self._decode(line, place)) is not None:
                    yield text, place
                place += len(line)

    def _paragraphs(self) -> Iterator[tuple[str, int]]:
        paragraph: list[bytes] = []
        begin = 0
        for lines, place in self._blocks():
            for line in lines:
                if line.strip():
                    begin = begin if paragraph else place
                    paragraph.append(line)
                elif paragraph:
                    if (text := self._decode(b"".join(paragraph), begin)) is not None:
                        yield text, begin
                    paragraph = []
                place += len(line)
        if paragraph and (text := self._decode(b"".join(paragraph), begin)) is not None:
            yield text, begin

    def _rows(self) -> Iterator[tuple[str, int]]:
        part, row = self._part, self._part.start
        for texts in read_texts(part.input.path, part.start, part.stop, self._text_key):
            self.bytes_read = part.bytes * (row + len(texts) - part.start) // (part.stop - part.start)
            for text in texts:
                if type(text) is str:
                    yield text, row
                elif text is None:
                    self._refuse(row, b"", UnreadableError("null", f"'{self._text_key}' is null"))
                else:
                    self._decode(text, row)
                row += 1

    def _unusual_json(self, line: bytes, place: int) -> str | None:
        """The text of a line that the short way did not give; None if it is malformed."""
        try:
            text, repaired = text_of_json(line, self._text_key)
        except UnreadableError as error:
            return self._refuse(place, line, error)
        self.repaired += repaired
        return text

    def _decode(self, raw: bytes, place: int) -> str | None:
        """The text of raw lines; None if they are malformed."""
        try:
            return decode(raw)
        except UnreadableError as error:
            return self._refuse(place, raw, error)

    def _refuse(self, place: int, raw: bytes, error: UnreadableError) -> None:
        if self._on_malformed is None:
            raise DataError(f"{self._position(place, error.offset)}: {error}") from error
        self._on_malformed(Malformed(place, error.reason, raw.removesuffix(b"\n").removesuffix(b"\r")))

    def _position(self, place: int, offset: int) -> str:
        """File and line; found by reading anew, as counting the lines of every part would cost a pass."""
        source = self._part.input
        if source.unit == "row":
            return f"{source.path}: row {place}"
        number, left = 1, place + offset
        with open(source.path, "rb") as raw:
            stream = source.decompress(raw, source.path) if source.decompress else raw
            while left and (block := stream.read(min(left, _COPY_BYTES))):
                number += block.count(b"\n")
                left -= len(block)
        return f"{source.path}:{number}"


def _read_lines(stream: BinaryIO, count: int) -> list[bytes]:
    """The lines that begin in the next `count` bytes, with their ends."""
    if count > 1:
        return stream.readlines(count - 1)  # it goes on until it has more than the hint
    return list(filter(None, [stream.readline()]))  # to readlines, 0 means all

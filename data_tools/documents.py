"""The documents of a part of a corpus file, one string each with its place, and where a bad one stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress

import orjson

from data_tools.columnar import read_texts
from data_tools.decoding import UnreadableError, decode, text_of_json
from data_tools.inputs import Documents, Range
from data_tools.json_text import value_reader
from data_tools.part_stream import READ_BYTES, PartStream, buffered, checksum_of_part
from megatron_glm.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COPY_BYTES = 1 << 20

Block = tuple[list[str], Sequence[int]]  # texts, and the place of each


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
    """Reads the documents of a part of a file, from its beginning, once: some at a time, or one by one.

    A place is the byte of the file where the document begins (of the decompressed content, if it is compressed)
    or the number of its row, from 0.

    Args:
        text_key: of the text in a JSON object or row; `a.b` is b in the object a, unless a key has that whole name.
        on_malformed: is given each document that cannot be read, and reading goes on; without, the first raises.

    Attributes:
        bytes_read: bytes of the file that were consumed so far (compressed ones, if it is).
        checksum: of the bytes of the file, when all documents are read: as `checksum_of_part` gives it.
        repaired: documents in which lone surrogates were replaced by U+FFFD.

    Raises:
        DataError: a malformed document, with file and line, unless there is `on_malformed`; in any case truncated
            or damaged data of a compressed or columnar file, and a columnar one without strings under `text_key`.
    """

    def __init__(self, part: Range, text_key: str, on_malformed: Callable[[Malformed], None] | None = None):
        self._part, self._text_key, self._on_malformed = part, text_key, on_malformed
        self.bytes_read = 0
        self.checksum = ""
        self.repaired = 0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for texts, places in self.blocks():
            yield from zip(texts, places, strict=True)

    def blocks(self) -> Iterator[Block]:
        """Texts of about a megabyte of the file or less at a time, possibly none, and the place of each."""
        match self._part.input.documents:
            case Documents.JSON:
                return self._json_documents()
            case Documents.LINES:
                return self._line_documents()
            case Documents.PARAGRAPHS:
                return self._paragraphs()
            case Documents.ROWS:
                return self._rows()

    def _lines(self) -> Iterator[tuple[list[bytes], list[int]]]:
        """Some whole lines at a time, with their ends, and the place of each."""
        source, place = self._part.input, self._part.start
        packed = source.decompress is not None
        with PartStream(self._part) as raw:
            stream = source.decompress(raw, source.path) if packed else buffered(raw)
            while lines := stream.readlines(READ_BYTES):
                places = list(accumulate(map(len, lines), initial=place))
                place = places.pop()
                self.bytes_read = raw.position if packed else place - self._part.start
                if places[0] == 0 and lines[0].startswith(_BYTE_ORDER_MARK):
                    lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
                    places[0] = len(_BYTE_ORDER_MARK)
                yield lines, places
            self.checksum = raw.checksum()

    def _json_documents(self) -> Iterator[Block]:
        read = value_reader(self._text_key)
        for lines, places in self._lines():
            try:
                texts = [read(line) for line in lines]
            except (orjson.JSONDecodeError, KeyError, TypeError):
                texts = [None]
            if set(map(type, texts)) != {str}:
                texts = [self._json_text(*each, read) for each in zip(lines, places, strict=True)]
            yield _without_none(texts, places)

    def _json_text(self, line: bytes, place: int, read: Callable[[bytes], object]) -> str | None:
        """The text in a line; None if the line is blank or malformed."""
        try:
            if type(text := read(line)) is str:
                return text
        except (orjson.JSONDecodeError, KeyError, TypeError):
            if line.isspace():
                return None
        try:
            text, repaired = text_of_json(line, self._text_key)
        except UnreadableError as error:
            return self._refuse(place, line, error)
        self.repaired += repaired
        return text

    def _line_documents(self) -> Iterator[Block]:
        for lines, places in self._lines():
            yield _without_none([self._decode(*each) for each in zip(lines, places, strict=True)], places)

    def _paragraphs(self) -> Iterator[Block]:
        paragraph: list[bytes] = []
        begin = 0
        for lines, places in self._lines():
            texts: list[str | None] = []
            begins: list[int] = []
            for line, place in zip(lines, places, strict=True):
                if line.strip():
                    begin = begin if paragraph else place
                    paragraph.append(line)
                elif paragraph:
                    texts.append(self._decode(b"".join(paragraph), begin))
                    begins.append(begin)
                    paragraph = []
            yield _without_none(texts, begins)
        if paragraph:
            yield _without_none([self._decode(b"".join(paragraph), begin)], [begin])

    def _rows(self) -> Iterator[Block]:
        part, row = self._part, self._part.start
        self.checksum = checksum_of_part(part)
        for values in read_texts(part.input.path, part.start, part.stop, self._text_key):
            self.bytes_read = part.bytes * (row + len(values) - part.start) // (part.stop - part.start)
            rows = range(row, row + len(values))
            yield _without_none([self._text_of_row(*each) for each in zip(values, rows, strict=True)], rows)
            row = rows.stop

    def _text_of_row(self, value: str | bytes | None, row: int) -> str | None:
        """The text of a row; None if it is malformed."""
        if type(value) is str:
            return value
        if value is None:
            return self._refuse(row, b"", UnreadableError("null", f"'{self._text_key}' is null"))
        return self._decode(value, row)

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


def _without_none(texts: list[str | None], places: Sequence[int]) -> Block:
    """The texts that are there, and their places."""
    if None not in texts:
        return texts, places
    there = [text is not None for text in texts]
    return list(compress(texts, there)), list(compress(places, there))

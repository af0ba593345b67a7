"""The documents of a part of a corpus file, one string each, and where a bad one stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import orjson

from data_tools.inputs import Documents, Range
from megatron_glm.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")
_COPY_BYTES = 1 << 20
_SHOWN_KEYS = 8


class DocumentReader:
    """Iterates over the documents of a part of a file.

    Attributes:
        bytes_read: bytes of the file that were consumed so far (compressed ones, if it is).
        repaired: documents in which lone surrogates were replaced by U+FFFD.

    Raises:
        DataError: invalid UTF-8, a line that is no JSON object with a string under `text_key`, or
            truncated compressed data; with file and line.
    """

    def __init__(self, part: Range, text_key: str):
        self._part, self._text_key = part, text_key
        self._line = 0  # lines of the part that were read
        self.bytes_read = 0
        self.repaired = 0

    def __iter__(self) -> Iterator[str]:
        match self._part.input.documents:
            case Documents.JSON:
                return self._json_documents()
            case Documents.LINES:
                return (self._decode(line, self._line) for line in self._lines())
            case Documents.PARAGRAPHS:
                return self._paragraphs()

    def _lines(self) -> Iterator[bytes]:
        source = self._part.input
        with open(source.path, "rb") as raw:
            raw.seek(self._part.start)
            lines = source.decompress(raw, source.path) if source.decompress else raw
            while self.bytes_read < self._part.stop - self._part.start or source.decompress:
                line = next(lines, b"")
                if not line:
                    return
                self.bytes_read = raw.tell() if source.decompress else self.bytes_read + len(line)
                self._line += 1
                if self._line == 1 and self._part.start == 0:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                yield line

    def _paragraphs(self) -> Iterator[str]:
        block: list[bytes] = []
        for line in self._lines():
            if line.strip():
                block.append(line)
            elif block:
                yield self._decode(b"".join(block), self._line - len(block))
                block = []
        if block:
            yield self._decode(b"".join(block), self._line - len(block) + 1)

    def _json_documents(self) -> Iterator[str]:
        for line in self._lines():
            if not line.strip():
                continue
            record = self._parse(line)
            if not isinstance(record, dict):
                raise self._error(f"expected a JSON object with the key '{self._text_key}', got {_kind(record)}")
            if self._text_key not in record:
                keys = ", ".join(f"'{key}'" for key in list(record)[:_SHOWN_KEYS]) or "none"
                raise self._error(f"no key '{self._text_key}' (keys there: {keys}); name the right one by --text-key")
            text = record[self._text_key]
            if not isinstance(text, str):
                raise self._error(f"'{self._text_key}' must be a string, got {_kind(text)}")
            yield text

    def _parse(self, line: bytes) -> object:
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            pass
        # orjson refuses lone surrogates, which crawled text has; the standard library reads them.
        text = self._decode(line, self._line)
        try:
            record = json.loads(text)
        except ValueError as error:
            column = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise self._error(f"broken JSON ({reason}{column}); each line must be one JSON object") from error
        except RecursionError as error:
            raise self._error("broken JSON (nested too deeply); each line must be one JSON object") from error
        return self._repair(record)

    def _repair(self, record: object) -> object:
        if not isinstance(record, dict) or not isinstance(text := record.get(self._text_key), str):
            return record
        repaired = _SURROGATE.sub("\ufffd", text)
        self.repaired += repaired != text
        return record | {self._text_key: repaired}

    def _decode(self, raw: bytes, line: int) -> str:
        """The text of raw lines, of which the first has number `line` in the part; its last newline is left out."""
        try:
            return raw.decode("utf-8").replace("\r\n", "\n").removesuffix("\n")
        except UnicodeDecodeError as error:
            start = raw.rfind(b"\n", 0, error.start) + 1
            reason = f"byte 0x{raw[error.start]:02x} at offset {error.start - start} of the line"
            line += raw.count(b"\n", 0, error.start)
            raise self._error(f"invalid UTF-8 ({reason}); convert the file to UTF-8", line) from error

    def _error(self, what: str, line: int | None = None) -> DataError:
        source = self._part.input
        number = self._line if line is None else line
        with open(source.path, "rb") as stream:  # only now, as counting the lines of every part would cost a pass
            left = self._part.start
            while left and (block := stream.read(min(left, _COPY_BYTES))):
                number += block.count(b"\n")
                left -= len(block)
        return DataError(f"{source.path}:{number}: {what}")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")

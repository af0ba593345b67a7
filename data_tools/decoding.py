"""The text in the bytes of one document, and what is wrong with those that have none."""

from __future__ import annotations

import json
import re

import orjson

from data_tools.json_text import value_under

_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN_KEYS = 8
_ONE_OBJECT = "each line must be one JSON object"
_ARRAY_HINT = " (lines of a JSON array are made by `jq -c '.[]'`)"


class UnreadableError(Exception):
    """A document without a text: `reason` is one of a few phrases, `offset` the byte of it that is wrong."""

    def __init__(self, reason: str, explanation: str, offset: int = 0):
        super().__init__(explanation)
        self.reason, self.offset = reason, offset


def decode(raw: bytes) -> str:
    """The text of raw lines; `\\r\\n` becomes `\\n`, and the last newline is left out.

    Raises:
        UnreadableError: invalid UTF-8.
    """
    try:
        return raw.decode("utf-8").replace("\r\n", "\n").removesuffix("\n")
    except UnicodeDecodeError as error:
        start = raw.rfind(b"\n", 0, error.start) + 1
        where = f"byte 0x{raw[error.start]:02x} at offset {error.start - start} of the line"
        raise UnreadableError("invalid UTF-8", f"invalid UTF-8 ({where}); convert the file to UTF-8", start) from error


def text_of_json(line: bytes, key: str) -> tuple[str, bool]:
    """The text in a line of JSON, and whether lone surrogates in it were replaced.

    Raises:
        UnreadableError: it has none.
    """
    record = _parse(line)
    if not isinstance(record, dict):
        hint = _ARRAY_HINT if isinstance(record, list) else ""
        raise UnreadableError(
            "no object", f"expected a JSON object with the key '{key}', got {_kind(record)}; {_ONE_OBJECT}{hint}"
        )
    try:
        text = value_under(key)(record)
    except (KeyError, TypeError) as error:
        keys = ", ".join(f"'{name}'" for name in list(record)[:_SHOWN_KEYS]) or "none"
        raise UnreadableError(
            "no text key", f"no key '{key}' (keys there: {keys}); name the right one by --text-key"
        ) from error
    if not isinstance(text, str):
        raise UnreadableError("text is no string", f"'{key}' must be a string, got {_kind(text)}")
    repaired = _SURROGATE.sub("\ufffd", text)
    return repaired, repaired != text


def _parse(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass
    # orjson refuses lone surrogates, which crawled text has; the standard library reads them.
    text = decode(line)
    hint = _ARRAY_HINT if text.lstrip().startswith("[") else ""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        found, cause = f"{error.msg}, column {error.colno}", error
    except ValueError as error:  # a number of too many digits
        found, cause = str(error), error
    except RecursionError as error:
        found, cause = "nested too deeply", error
    raise UnreadableError("broken JSON", f"broken JSON ({found}); {_ONE_OBJECT}{hint}") from cause


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")

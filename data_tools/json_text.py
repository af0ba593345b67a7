"""The value under a key of a JSON line, by simdjson where it is installed: half the work of a whole record.

What it finds is what orjson gives; where the two might differ, or it refuses a line, orjson is asked. So which
of them is installed decides nothing but the time.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from operator import itemgetter

import orjson

_OPENING = ord("{")  # simdjson skips a byte order mark, which is no JSON in the middle of a file
_SHORTEST = 512  # bytes; below it the call itself costs more than it spares
_LONGEST = 1 << 20  # bytes; simdjson keeps ten times the longest line in memory


def value_reader(key: str) -> Callable[[bytes], object]:
    """What gives the value under `key` of a line; see `value_under`.

    It raises orjson.JSONDecodeError where the line is no JSON, KeyError or TypeError where it has no such value.
    """
    find = value_under(key)

    def read(line: bytes) -> object:
        return find(orjson.loads(line))

    return read if "." in key or find_spec("simdjson") is None else _faster(key, read)


def value_under(key: str) -> Callable[[object], object]:
    """What gets the value from a record; `a.b` is b in the object a, unless there is a key of that whole name.

    It raises KeyError or TypeError where there is none.
    """
    if "." not in key:
        return itemgetter(key)
    *path, last = key.split(".")

    def find(record: object) -> object:
        if key in record:
            return record[key]
        for part in path:
            record = record[part]
        return record[last]

    return find


def _faster(key: str, read: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """The same as `read` for a plain key, sooner where the value is a string."""
    from simdjson import Parser

    parse = Parser().parse

    def read_fast(line: bytes) -> object:
        if _SHORTEST <= len(line) <= _LONGEST and line[0] == _OPENING:
            try:
                record = parse(line)
                if [*record].count(key) == 1:  # of several, simdjson takes the first and orjson the last
                    text = record[key]
                    if type(text) is str:
                        return text
            except (ValueError, RuntimeError):  # no JSON, or a number or depth that it does not read
                pass
        return read(line)

    return read_fast

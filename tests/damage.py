"""Strategies that damage a valid file: as disks and copies do, and as someone does who knows its format."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

# What the numbers of a header may be turned into: ends of types, and sizes that nobody has.
NUMBERS = [0, 1, 2, 3, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
DEEP = 100_000
ODD_TEXT = [
    b"",
    b"\xef\xbb\xbf",
    b"\0",
    b"\xff\xfe",
    b"\r\n",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 5000,
    b'"\\ud800"',
    b"\\u0000",
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b"null",
    b"true",
    b"-1",
    b"1.5",
    b'""',
    b"{}",
    b"[]",
    b",",
    b"}",
    b"]",
    b'"',
]
WHOLE_OTHERS = [b"", b"\n", b"{}", b"[]", b"null", b"PK\x03\x04" + bytes(60), b"\x80\x04\x95" + bytes(60), bytes(4096)]


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, *, snippets: Sequence[bytes] = tuple(ODD_TEXT)) -> bytes:
    """A file after one to three accidents."""
    content = whole
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        content = draw(_once(content, snippets))
    return content


@st.composite
def _once(draw: st.DrawFn, content: bytes, snippets: Sequence[bytes]) -> bytes:
    size = len(content)
    start = draw(st.integers(0, max(0, size - 1)))
    length = draw(st.sampled_from([1, 1, 2, 4, 8, 34, size // 2 + 1]))
    head, part, tail = content[:start], content[start : start + length], content[start + length :]
    match draw(st.sampled_from(["flip", "set", "cut", "end", "insert", "repeat", "number", "swap", "lines", "other"])):
        case "flip":
            return (
                head + bytes([content[start] ^ 1 << draw(st.integers(0, 7))]) + content[start + 1 :] if size else b"x"
            )
        case "set":
            return head + draw(st.binary(min_size=len(part), max_size=len(part))) + tail
        case "cut":
            return head + tail
        case "end":
            return head
        case "insert":
            return head + draw(st.sampled_from(snippets) | st.binary(max_size=8)) + part + tail
        case "repeat":
            return head + part + part + tail
        case "number":
            number = draw(st.sampled_from(NUMBERS)) * draw(st.sampled_from([1, -1])) % 2**64
            packed = struct.pack("<Q", number)[: draw(st.sampled_from([1, 2, 4, 8]))]
            return head + packed + content[start + len(packed) :]
        case "swap":
            middle = len(tail) // 2
            return head + tail[:middle] + part + tail[middle:]
        case "lines":
            return content.replace(b"\n", draw(st.sampled_from([b"\r\n", b"\r", b"\n\n", b""])))
        case _:
            return draw(st.sampled_from(WHOLE_OTHERS))


class Twin(str):
    """A key that is not equal to another of the same letters, so that an object can have it twice."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


ODD_VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 1.0, 1.5, float("nan"), float("inf"), 1e300),
    *(2**31, 2**53 + 1, 2**62, 2**63, 2**64, -(2**63), 10**30, 10**4000),
    *("", "0", "1", "x", "..", "../x", "/etc/hostname", ".", "a/../../b", "\ud800", "\0", "\x1b[2J", "nan", "a" * 5000),
    *([], {}, [[]], [None], [[0, 1]], [1, 2, 3], {"a": 1}, [{}], {"": None}),
]
odd_values = st.sampled_from(ODD_VALUES).map(copy.deepcopy)  # what they are put into is changed further


@st.composite
def damaged_tree(draw: st.DrawFn, tree: Any) -> Any:
    """A JSON value of which one to three places are another than they should be."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        places = list(_places(tree))
        if not places:
            return draw(odd_values)
        # Deep places are many, so that the upper ones would hardly ever have their turn.
        depth = draw(st.integers(1, max(len(place) for place in places)))
        place = draw(st.sampled_from([place for place in places if len(place) == depth]))
        _change(draw, tree, place, places)
    return tree


def _places(tree: Any, place: tuple = ()) -> Any:
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield (*place, key)
        yield from _places(tree[key], (*place, key))


def _at(tree: Any, place: Sequence) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def _change(draw: st.DrawFn, tree: Any, place: tuple, places: list[tuple]) -> None:
    *above, key = place
    holder = _at(tree, above)
    match draw(
        st.sampled_from(["odd", "odd", "odd", "near", "drop", "twice", "rename", "from elsewhere", "more", "deep"])
    ):
        case "odd":
            holder[key] = draw(odd_values)
        case "near":
            holder[key] = _near(draw, holder[key])
        case "drop":
            del holder[key]
        case "twice" if isinstance(holder, dict):
            holder[Twin(key)] = draw(odd_values)
        case "rename" if isinstance(holder, dict):
            holder[draw(st.sampled_from(["", "x", f"{key}x", "\ud800"]))] = holder.pop(key)
        case "more" if isinstance(holder, dict):
            holder["unknown"] = draw(odd_values)
        case "more" | "twice":
            holder.append(copy.deepcopy(holder[key]))
        case "deep":
            holder[key] = _nest(draw(st.sampled_from([20, 110])), holder[key])
        case _:
            holder[key] = copy.deepcopy(_at(tree, draw(st.sampled_from(places))))


def _near(draw: st.DrawFn, value: Any) -> Any:
    """Another value of the same type, as far as there is one."""
    match value:
        case bool():
            return not value
        case int():
            return draw(
                st.sampled_from(
                    [
                        value + 1,
                        value - 1,
                        -value,
                        2 * value,
                        value << 40,
                        str(value),
                        value + 0.5 if abs(value) < 2**64 else 0.5,
                    ]
                )
            )
        case float():
            return draw(st.sampled_from([value * 2, -value, 0.0, str(value)]))
        case str():
            return draw(
                st.sampled_from([value[1:], value + "x", value.upper(), value[::-1], f"../{value}", f"/{value}"])
            )
        case list():
            return value[::-1] + value[:1]
        case dict():
            return list(value.values())
    return 0


def _nest(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def to_json(tree: Any, **options: Any) -> bytes:
    """As text, repeated keys and NaN included."""
    return json.dumps(tree, **options).encode()

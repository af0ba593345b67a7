"""JSON that anyone may have written: one meaning, or a ValueError that says why there is none.

The standard reader takes the last of repeated keys, NaN, numbers beyond every float, halves of characters that nothing
can print, and nests that end the process's stack later on; each was seen to become a wrong value or a traceback.
"""

from __future__ import annotations

import json
import math
import re
from itertools import chain
from typing import Any

DEEPEST = 100
LARGEST = 2**63 - 1
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SHOWN = 60  # characters of a wrong value


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text in UTF-8.

    Raises:
        ValueError: broken JSON, a repeated key, NaN or infinity, half a surrogate pair, or a nest of more than
            DEEPEST levels.
    """
    text = data if isinstance(data, str) else data.decode("utf-8")
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _check_depth(value)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # a pair of them is a character
    return value


def json_object(data: bytes | str) -> dict[str, Any]:
    """The same, of a text that must hold an object."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {shown(value)}")
    return value


def whole_number(value: Any) -> int:
    """A size or place in a file: 0 … LARGEST. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"expected a whole number from 0 to 2**63 - 1, got {shown(value)}")
    return value


def string(value: Any) -> str:
    """A name or a hash. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"expected a string, got {shown(value)}")
    return value


def shown(value: Any) -> str:
    """A wrong value for an error, cut to a length that a line can have."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {shown(repeated)} is repeated")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:_SHOWN]} is too large for a number")
    return value


def _check_depth(value: Any) -> None:
    """Without recursion, level by level."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        parts = chain.from_iterable(item.values() if isinstance(item, dict) else item for item in level)
        level = [part for part in parts if isinstance(part, dict | list)]
        if not level:
            return
    raise ValueError(f"nested more than {DEEPEST} levels deep")

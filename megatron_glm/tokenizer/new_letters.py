"""The characters in which gigatoken and tokenizers differ: letters and digits of Unicode 17.

To gigatoken 0.10 they are such, to tokenizers 0.23 unassigned. They are rare, and every text beyond ASCII is asked
for them, so nearly all of them are let through by a look at their bytes.
"""

from __future__ import annotations

from functools import cache

import numpy as np

_CODE_POINTS = 0x110000
_NEW_LETTERS = (  # first and last of each range
    (0x088F, 0x088F),
    (0x0C5C, 0x0C5C),
    (0x0CDC, 0x0CDC),
    (0xA7CE, 0xA7CF),
    (0xA7D2, 0xA7D2),
    (0xA7D4, 0xA7D4),
    (0xA7F1, 0xA7F1),
    (0x10940, 0x10959),
    (0x10EC5, 0x10EC7),
    (0x11DB0, 0x11DDB),
    (0x11DE0, 0x11DE9),
    (0x16EA0, 0x16EB8),
    (0x16EBB, 0x16ED3),
    (0x16FF2, 0x16FF6),
    (0x187F8, 0x187FF),
    (0x18D09, 0x18D1E),
    (0x18D80, 0x18DF2),
    (0x1E6C0, 0x1E6DE),
    (0x1E6E0, 0x1E6E2),
    (0x1E6E4, 0x1E6E5),
    (0x1E6E7, 0x1E6ED),
    (0x1E6F0, 0x1E6F4),
    (0x1E6FE, 0x1E6FF),
    (0x2B73A, 0x2B73F),
    (0x2CEA2, 0x2CEAD),
    (0x323B0, 0x33479),
)
# How those of three bytes begin. Those of four begin with f0, as emojis do, whose second byte is 9f.
_OF_E0, _OF_EA = (b"\xe0\xa2", b"\xe0\xb1", b"\xe0\xb3"), b"\xea\x9f"


def has_no_new_letters(text: bytes) -> bool:
    """Whether a text, in UTF-8, has none of the letters and digits that the two libraries read in different ways."""
    if not _may_hold_new(text):
        return True
    return not _is_new()[np.frombuffer(text.decode().encode("utf-32-le"), "<u4")].any()


def _may_hold_new(text: bytes) -> bool:
    """Whether the letters themselves are worth a look, which takes ten times as long; one byte is found fastest."""
    return (
        (0xF0 in text and _has_more_than_emojis(np.frombuffer(text, np.uint8)))
        or (0xEA in text and _OF_EA in text)
        or (0xE0 in text and any(begin in text for begin in _OF_E0))
    )


def _has_more_than_emojis(text: np.ndarray) -> bool:
    """Whether bytes [n] of UTF-8 have f0 in front of another byte than 9f."""
    return bool((text[np.flatnonzero(text == 0xF0) + 1] != 0x9F).any())


@cache
def _is_new() -> np.ndarray:
    """Of every code point: bool [0x110000]."""
    table = np.zeros(_CODE_POINTS, bool)
    for first, last in _NEW_LETTERS:
        table[first : last + 1] = True
    return table

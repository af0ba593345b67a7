"""Where a long text may be cut, so that its parts, encoded one by one, have the ids of the whole.

The libraries hold 40 to 130 bytes for each character they are given at once: a document of 100 MB would need
up to 13 GB. A cut is safe where the library itself divides the text, whatever stands on either side, and reads
neither side otherwise for the other. Each kind of tokenizer says where that is; where it is nowhere, the text
stays whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PART_CHARACTERS = 1 << 17  # about 15 MB while it is encoded

# A character that is no white space to any library, and that no normalization takes away or lets end in a space.
_VISIBLE = r"[\w!-~。！？，、；：…”’」』）】》]"
# The same at the beginning; these letters are normalized to a space and a mark.
_VISIBLE_FIRST = r"[^\W\u037a\ufc5e-\ufc63\ufcf2-\ufcf4\ufe70-\ufe7f]|[!-~。！？，、；：…“‘「『（【《]"

# GPT-2's pattern takes white space only in front of a word, and looks ahead only behind white space.
BEFORE_SPACE = re.compile(rf"(?<={_VISIBLE})(?=[ \n])")
# SentencePiece makes one sign of several spaces, and may drop them at both ends.
BEFORE_ONE_SPACE = re.compile(rf"(?<={_VISIBLE})(?= (?:{_VISIBLE_FIRST}))")
BEFORE_ONE_SPACE_OR_LINE = re.compile(rf"(?<={_VISIBLE})(?=[ \n](?:{_VISIBLE_FIRST}))")
# BERT parts words at white space and around each Chinese character; marks never join either from behind.
BEFORE_SPACE_OR_CHINESE = re.compile(r"(?=[ \n\u4e00-\u9fa5])")


def parts(text: str, cut: re.Pattern[str], characters: int | None = None) -> Iterator[str]:
    """A text in parts of at least so many characters, cut where the empty match `cut` is found, but for the last."""
    size = PART_CHARACTERS if characters is None else characters
    start = 0
    while found := cut.search(text, start + size):
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]

"""The libraries behind fast tokenizers: gigatoken for byte-level BPE, nanotoken for WordPiece.

They get only definitions of the form that `published` writes, for which they are tested, and without the
special tokens, which they would find in text. Each encodes on the calling thread, as work is spread over
processes, and keeps a bounded amount of memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson

from megatron_glm.tokenizer.forms import BERT_WORDPIECE, BYTE_LEVEL_BPE, has_form

# The letters and digits of Unicode 17: they are such to gigatoken 0.10, and unassigned to tokenizers 0.23.
_NEW = re.compile(
    "[\u088f\u0c5c\u0cdc\ua7ce\ua7cf\ua7d2\ua7d4\ua7f1\U00010940-\U00010959\U00010ec5-\U00010ec7\U00011db0-\U00011ddb"
    "\U00011de0-\U00011de9\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3\U00016ff2-\U00016ff6\U000187f8-\U000187ff"
    "\U00018d09-\U00018d1e\U00018d80-\U00018df2\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6e2\U0001e6e4-\U0001e6e5"
    "\U0001e6e7-\U0001e6ed\U0001e6f0-\U0001e6f4\U0001e6fe-\U0001e6ff\U0002b73a-\U0002b73f\U0002cea2-\U0002cead"
    "\U000323b0-\U00033479]"
)
# How those of three bytes begin. Of the others only emojis, which begin with f0 9f, are common in text.
_NEW_OF_E0, _NEW_OF_EA, _EMOJIS = (b"\xe0\xa2", b"\xe0\xb1", b"\xe0\xb3"), b"\xea\x9f", b"\xf0\x9f"

_LARGEST_GROWTH = 1 << 28  # bytes
_CHECK_EVERY = 1 << 23  # bytes of text


def has_no_new_letters(text: bytes) -> bool:
    """Whether a text, in UTF-8, has none of the letters and digits that gigatoken takes for such and tokenizers not."""
    return not _may_hold_new(text) or _NEW.search(text.decode()) is None


class Engine(Protocol):
    """A library with a model."""

    def can_read(self, text: bytes) -> bool:
        """Whether it is not known to read a text beyond ASCII, in UTF-8, in another way than the reference."""

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Ids of plain texts, in UTF-8: int32 [n] each.

        Raises:
            Exception: of any kind, if it refuses one of the texts.
        """


class Gigatoken:
    """Byte-level BPE.

    Its cache of words grows without bound, by 60 bytes for each new one, and it has no way to empty it: so the
    model is loaded anew, in 0.2 seconds, when the process has grown by 256 MB.
    """

    def __init__(self, definition: dict[str, Any], *, prefix_space: bool):
        from gigatoken.gigatoken_rs import load_hf_json

        definition["pre_tokenizer"]["add_prefix_space"] = self._prefix_space = prefix_space
        serialized = orjson.dumps(definition)
        self._load: Callable[[], Any] = lambda: load_hf_json(serialized)
        self._begin()

    def can_read(self, text: bytes) -> bool:
        return has_no_new_letters(text)

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        if self._prefix_space:  # the library puts no space in front of one; a copy of every text costs much
            texts = [b" " + text if text.startswith(b" ") else text for text in texts]
        self._unchecked += sum(map(len, texts))
        if self._unchecked > _CHECK_EVERY:
            self._unchecked = 0
            if _resident_bytes() - self._resident_at_first > _LARGEST_GROWTH:
                self._begin()
        # One by one is as fast as in batches, and spares 0.2 seconds of loading what a batch comes in, awkward.
        encode = self._model.encode
        return [encode(text).view(np.int32) for text in texts]

    def _begin(self) -> None:
        self._model = None  # the old one goes before the new one comes
        self._model, self._unchecked, self._resident_at_first = self._load(), 0, _resident_bytes()


def _may_hold_new(text: bytes) -> bool:
    """Whether a search is worth its time, a hundred times that of this look; a single byte is found fastest."""
    return (
        (0xF0 in text and text.count(0xF0) > text.count(_EMOJIS))
        or (0xEA in text and _NEW_OF_EA in text)
        or (0xE0 in text and any(begin in text for begin in _NEW_OF_E0))
    )


class Nanotoken:
    """BERT's WordPiece; its cache ends at about 200 MB."""

    def __init__(self, definition: dict[str, Any], *, prefix_space: bool):
        from nanotoken import WordPieceTokenizer

        self._model = WordPieceTokenizer.from_json(orjson.dumps(definition))  # to which a space in front is nothing

    def can_read(self, text: bytes) -> bool:
        return True

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        ids, offsets = self._model.encode_batch(texts, add_special_tokens=False, parallel=False)
        ids = ids.view(np.int32)
        return [ids[start:end] for start, end in pairwise(offsets.tolist())]


_ENGINES = (("gigatoken", Gigatoken, BYTE_LEVEL_BPE), ("nanotoken", Nanotoken, BERT_WORDPIECE))


def library_for(model: bytes) -> str | None:
    """The package on PyPI whose engine gives the ids of a tokenizer.json; None where none is known to."""
    definition = orjson.loads(model)
    return next((name for name, _, form in _ENGINES if has_form(definition, form)), None)


def load_engine(model: bytes, library: str, *, prefix_space: bool) -> Engine:
    """The engine of a library that `library_for` named.

    Args:
        prefix_space: put a space before the first word of a text.

    Raises:
        ImportError: the library is not installed.
        Exception: of any kind, if the library refuses the model.
    """
    definition = orjson.loads(model)
    plain = {"truncation": None, "padding": None, "added_tokens": [], "post_processor": None}
    (engine,) = (engine for name, engine, _ in _ENGINES if name == library)
    return engine(definition | plain, prefix_space=prefix_space)


def _resident_bytes() -> int:
    """Memory of this process that lies in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

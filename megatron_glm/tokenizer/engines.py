"""The libraries behind fast tokenizers: gigatoken for byte-level BPE, nanotoken for WordPiece.

They get only definitions of the form that `published` writes, for which they are tested, and without the
special tokens, which they would find in text. Each encodes on the calling thread, as work is spread over
processes, and keeps a bounded amount of memory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

# What else a tokenizer.json may say of the model would need a test of its own.
_BYTE_LEVEL_BPE = {
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    },
}
_BERT_WORDPIECE = {
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    },
}

# The letters and digits of Unicode 17: they are such to gigatoken 0.10, and unassigned to tokenizers 0.23.
_NEW = re.compile(
    "[\u088f\u0c5c\u0cdc\ua7ce\ua7cf\ua7d2\ua7d4\ua7f1\U00010940-\U00010959\U00010ec5-\U00010ec7\U00011db0-\U00011ddb"
    "\U00011de0-\U00011de9\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3\U00016ff2-\U00016ff6\U000187f8-\U000187ff"
    "\U00018d09-\U00018d1e\U00018d80-\U00018df2\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6e2\U0001e6e4-\U0001e6e5"
    "\U0001e6e7-\U0001e6ed\U0001e6f0-\U0001e6f4\U0001e6fe-\U0001e6ff\U0002b73a-\U0002b73f\U0002cea2-\U0002cead"
    "\U000323b0-\U00033479]"
)
_NEW_FIRST_BYTES = (0xE0, 0xEA, 0xF0)  # of their UTF-8: looking for a byte is fifty times as fast

_LARGEST_GROWTH = 1 << 28  # bytes
_CHECK_EVERY = 1 << 23  # bytes of text


class Engine(Protocol):
    """A library with a model."""

    def can_read(self, text: bytes) -> bool:
        """Whether it is not known to read a text beyond ASCII, in UTF-8, in another way than the reference."""

    def encode(self, texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of k plain texts, in UTF-8, one after another, and how many are of each: int32 [n], int64 [k].

        Raises:
            Exception: of any kind, if it refuses one of the texts.
        """


class Gigatoken:
    """Byte-level BPE.

    Its cache of words grows without bound, by 60 bytes for each new one, and it has no way to empty it: so the
    model is loaded anew, in 0.2 seconds, when the process has grown by 256 MB.
    """

    def __init__(self, definition: str):
        from gigatoken.gigatoken_rs import load_hf_json

        self._load: Callable[[], Any] = lambda: load_hf_json(definition)
        self._begin()

    def can_read(self, text: bytes) -> bool:
        return not any(byte in text for byte in _NEW_FIRST_BYTES) or _NEW.search(text.decode()) is None

    def encode(self, texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        self._unchecked += sum(map(len, texts))
        if self._unchecked > _CHECK_EVERY:
            self._unchecked = 0
            if _resident_bytes() - self._resident_at_first > _LARGEST_GROWTH:
                self._begin()
        rows = self._model.encode_batch(texts, parallel=False).layout  # of awkward, which need not be asked
        offsets = rows.offsets.data
        return rows.content.data[offsets[0] : offsets[-1]].view(np.int32), np.diff(offsets)

    def _begin(self) -> None:
        self._model = None  # the old one goes before the new one comes
        self._model, self._unchecked, self._resident_at_first = self._load(), 0, _resident_bytes()


class Nanotoken:
    """BERT's WordPiece; its cache ends at about 200 MB."""

    def __init__(self, definition: str):
        from nanotoken import WordPieceTokenizer

        self._model = WordPieceTokenizer.from_json(definition)

    def can_read(self, text: bytes) -> bool:
        return True

    def encode(self, texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        ids, offsets = self._model.encode_batch(texts, add_special_tokens=False, parallel=False)
        return ids.view(np.int32), np.diff(offsets)


_ENGINES = (("gigatoken", Gigatoken, _BYTE_LEVEL_BPE), ("nanotoken", Nanotoken, _BERT_WORDPIECE))


def library_for(model: bytes) -> str | None:
    """The package on PyPI whose engine gives the ids of a tokenizer.json; None where none is known to."""
    definition = json.loads(model)
    return next((name for name, _, form in _ENGINES if _has_form(definition, form)), None)


def load_engine(model: bytes, library: str) -> Engine:
    """The engine of a library that `library_for` named.

    Raises:
        ImportError: the library is not installed.
        Exception: of any kind, if the library refuses the model.
    """
    definition = json.loads(model)
    plain = {"truncation": None, "padding": None, "added_tokens": [], "post_processor": None}
    (engine,) = (engine for name, engine, _ in _ENGINES if name == library)
    return engine(json.dumps(definition | plain))


def _has_form(definition: dict[str, Any], form: dict[str, Any]) -> bool:
    model = {key: value for key, value in definition["model"].items() if key not in ("vocab", "merges")}
    found = {"normalizer": definition["normalizer"], "pre_tokenizer": definition["pre_tokenizer"], "model": model}
    # Other added tokens are parsed in text by the reference, and are ids of the vocabulary besides.
    return found == form and all(token["special"] for token in definition["added_tokens"])


def _resident_bytes() -> int:
    """Memory of this process that lies in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

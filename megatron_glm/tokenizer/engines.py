"""The libraries behind fast tokenizers: gigatoken for byte-level BPE, nanotoken for WordPiece.

They get only definitions of the form that `published` writes, for which they are tested, and without the
special tokens, which they would find in text. Each encodes on the calling thread, as work is spread over
processes, and keeps a bounded amount of memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson

from megatron_glm.tokenizer.forms import BERT_WORDPIECE, BYTE_LEVEL_BPE, has_form
from megatron_glm.tokenizer.new_letters import has_no_new_letters

_LARGEST_GROWTH = 1 << 28  # bytes
_CHECK_EVERY = 1 << 23  # bytes of text


class Engine(Protocol):
    """A library with a model."""

    def can_read(self, text: str) -> bool:
        """Whether it is not known to read a text in another way than the reference."""

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of plain texts: int32 [n] each.

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

    def can_read(self, text: str) -> bool:
        return text.isascii() or has_no_new_letters(text.encode())

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self._prefix_space:  # the library puts no space in front of one; a copy of every text costs much
            texts = [" " + text if text.startswith(" ") else text for text in texts]
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


class Nanotoken:
    """BERT's WordPiece; its cache ends at about 200 MB."""

    def __init__(self, definition: dict[str, Any], *, prefix_space: bool):
        from nanotoken import WordPieceTokenizer

        self._model = WordPieceTokenizer.from_json(orjson.dumps(definition))  # to which a space in front is nothing

    def can_read(self, text: str) -> bool:
        return True

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
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

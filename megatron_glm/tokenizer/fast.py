"""A tokenizer with a fast engine: the ids of its reference, ten to a hundred times as fast.

The libraries are young, so nothing rests on them alone. What an engine refuses, or is known to read in
another way, the reference encodes; and a run proves the engine on documents of its own before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.engines import Engine, library_for, load_engine
from megatron_glm.tokenizer.huggingface import HuggingFaceTokenizer


class FastTokenizer(Tokenizer):
    """A tokenizer whose plain text goes through an engine; for all else it is its reference, hash included.

    Args:
        reference: encodes what the engine does not.
        engine: of the same model, without special tokens.
    """

    def __init__(self, reference: HuggingFaceTokenizer, engine: Engine):
        self.kind = reference.kind
        self._reference, self._engine = reference, engine
        super().__init__(reference.model, reference.special, reference.vocab_size)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        # First the engine, even for what it cannot read: from then on Python keeps the UTF-8 of a text beyond ASCII.
        rows = self._encode_by_engine(texts)
        unreadable = [number for number, text in enumerate(texts) if not self._engine.can_read(text)]
        for number, ids in zip(unreadable, self._reference.encode_batch([texts[n] for n in unreadable]), strict=True):
            rows[number] = ids
        return rows

    def _encode_by_engine(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As `encode_batch`; a text that the engine refuses is found by halving, and goes to the reference."""
        try:
            return self._engine.encode(texts)
        except BaseException as error:
            if not _is_refusal(error):
                raise
        if len(texts) == 1:
            return self._reference.encode_batch(texts)
        middle = len(texts) // 2
        return [
            *self._encode_by_engine(texts[:middle]),
            *self._encode_by_engine(texts[middle:]),
        ]

    def _encode(self, texts: Sequence[str], *, continued: bool) -> list[np.ndarray]:
        return self._reference._encode(texts, continued=True) if continued else self.encode_batch(texts)

    def _encode_with_offsets(self, texts: Sequence[str], *, continued: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        return self._reference._encode_with_offsets(texts, continued=continued)  # no engine tells offsets

    @property
    def _safe_cut(self) -> re.Pattern[str] | None:
        return self._reference._safe_cut

    def _decode(self, ids: list[int]) -> str:
        return self._reference._decode(ids)

    def _stands_for_text(self, id: int) -> bool:
        return self._reference._stands_for_text(id)

    def _surface(self, id: int) -> str:
        return self._reference._surface(id)

    def _options(self) -> dict:
        return self._reference._options()

    def piece(self, id: int) -> str:
        return self._reference.piece(id)


def fast_library(tokenizer: Tokenizer) -> str | None:
    """The package on PyPI that can encode for the tokenizer, installed or not; None where there is none."""
    return library_for(tokenizer.model) if isinstance(tokenizer, HuggingFaceTokenizer) else None


def accelerated(tokenizer: Tokenizer) -> Tokenizer | None:
    """The same tokenizer with a fast engine; None if no library has one, it is not installed, or refuses the model.

    Make it once a process: it takes a fraction of a second, and 50 MB or more.
    """
    if not isinstance(tokenizer, HuggingFaceTokenizer) or (library := fast_library(tokenizer)) is None:
        return None
    try:
        return FastTokenizer(tokenizer, load_engine(tokenizer.model, library, prefix_space=tokenizer.prefix_space))
    except BaseException as error:
        if not _is_refusal(error):
            raise
        return None


def _is_refusal(error: BaseException) -> bool:
    """Whether a library failed, and not the user or the system ended the process; a panic of Rust is no Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"

"""A tokenizer with a fast engine: the ids of its reference, ten to a hundred times as fast.

The libraries are young, so nothing rests on them alone. What an engine refuses, or is known to read in
another way, the reference encodes; and a run proves the engine on documents of its own before it is used.
"""

from __future__ import annotations

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

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        raw = [text.encode() for text in self._reference.with_prefix_space(texts)]
        can_read = (text.isascii() or self._engine.can_read(each) for text, each in zip(texts, raw, strict=True))
        readable = np.fromiter(can_read, bool, len(raw))
        if readable.all():
            return self._encode_by_engine(texts, raw)
        ours, others = (np.flatnonzero(each).tolist() for each in (readable, ~readable))
        lengths = np.empty(len(texts), np.int64)
        fast_ids, lengths[ours] = self._encode_by_engine([texts[i] for i in ours], [raw[i] for i in ours])
        slow_ids, lengths[others] = self._reference.encode_flat([texts[i] for i in others])
        ids, is_fast = np.empty(lengths.sum(), np.int32), np.repeat(readable, lengths)
        ids[is_fast], ids[~is_fast] = fast_ids, slow_ids
        return ids, lengths

    def _encode_by_engine(self, texts: Sequence[str], raw: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """As `encode_flat`; a text that the engine refuses is found by halving, and goes to the reference."""
        try:
            return self._engine.encode(raw)
        except BaseException as error:
            if not _is_refusal(error):
                raise
        if len(texts) == 1:
            return self._reference.encode_flat(texts)
        middle = len(texts) // 2
        ids, lengths = self._encode_by_engine(texts[:middle], raw[:middle])
        more_ids, more_lengths = self._encode_by_engine(texts[middle:], raw[middle:])
        return np.concatenate([ids, more_ids]), np.concatenate([lengths, more_lengths])

    def _encode(self, texts: Sequence[str], *, continued: bool) -> list[np.ndarray]:
        if continued:
            return self._reference._encode(texts, continued=True)
        ids, lengths = self.encode_flat(texts)
        return np.split(ids, np.cumsum(lengths))[:-1]

    def _encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        return self._reference._encode_with_offsets(texts)  # no engine tells offsets

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
        return FastTokenizer(tokenizer, load_engine(tokenizer.model, library))
    except BaseException as error:
        if not _is_refusal(error):
            raise
        return None


def _is_refusal(error: BaseException) -> bool:
    """Whether a library failed, and not the user or the system ended the process; a panic of Rust is no Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"

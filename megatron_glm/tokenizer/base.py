"""What the rest of the system knows of a tokenizer.

Text is always plain text: `encode` never yields a special token, whatever the text spells, so that a
web page about BERT cannot put blanks into the corpus. Only `encode_with_special`, which generation
uses for prompts, reads [MASK], [sMASK] and [gMASK] as roles.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np

from megatron_glm.files import atomic_file
from megatron_glm.tokenizer import long_texts
from megatron_glm.tokenizer.description import DESCRIPTION_FILE, MODEL_FILES, Description
from megatron_glm.tokenizer.special import ROLE_PIECES, SpecialTokens

__all__ = ["SpecialTokens", "Tokenizer"]

Kind = Literal["sentencepiece", "wordpiece", "bpe"]

# A mask stands for the word and the space before it, as a span does in pretraining: the space goes with the mask.
_ROLE_OF_BLANK = {ROLE_PIECES[role]: role for role in ("mask", "sentence_mask", "document_mask")}
_BLANK = re.compile(f" *({'|'.join(map(re.escape, _ROLE_OF_BLANK))})")
_SENTENCE_END = re.compile("[.?!;:\n。？！；…]")


class Tokenizer(ABC):
    """Text to ids and back; ids are 0 … vocab_size − 1, special tokens included.

    Args:
        model: bytes of the file that defines the pieces.
        special: ids by role.

    Raises:
        TokenizerError: special ids that coincide or lie outside the vocabulary.
    """

    kind: Kind
    vocab_size: int
    special: SpecialTokens

    def __init__(self, model: bytes, special: SpecialTokens, vocab_size: int):
        special.check(vocab_size)
        self.special, self.vocab_size, self._model = special, vocab_size, model

    @abstractmethod
    def _encode(self, texts: Sequence[str], *, continued: bool) -> list[np.ndarray]:
        """int32 [n] for each text; `continued` texts stand behind others, so they get no space in front."""

    @abstractmethod
    def _encode_with_offsets(self, texts: Sequence[str], *, continued: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids and offsets of each text: int32 [n], int32 [n, 2]; `continued` texts begin at a `_safe_cut`."""

    @property
    @abstractmethod
    def _safe_cut(self) -> re.Pattern[str] | None:
        """What matches, emptily, where a text may be cut in parts that have the ids of the whole; None: nowhere."""

    @abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """Text of ids that are inside the vocabulary."""

    @abstractmethod
    def _stands_for_text(self, id: int) -> bool:
        """Whether some text has this piece: false for [UNK], [SEP], unused ones; not asked of roles."""

    @abstractmethod
    def _surface(self, id: int) -> str:
        """The characters that a piece which stands for text is written with."""

    @abstractmethod
    def _options(self) -> dict:
        """What decides the ids besides the model and the roles."""

    @abstractmethod
    def piece(self, id: int) -> str:
        """How one token is written in the vocabulary: for people, not for decoding."""

    def encode(self, text: str) -> np.ndarray:
        """Ids of plain text, without special tokens: int32 [n]."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of each text, on one thread: int32 [n] each."""
        encoded: list[np.ndarray] = []
        for is_long, group in groupby(texts, key=_is_long):
            if is_long:
                encoded += map(self._encode_long, group)
            else:
                encoded += self._encode(list(group), continued=False)
        return encoded

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """`encode_batch` without an array a text: ids of all texts, one after another, and tokens of each.

        int32 [n], int64 [k].
        """
        each = self.encode_batch(texts)
        return np.concatenate([np.empty(0, np.int32), *each]), np.array([len(ids) for ids in each], np.int64)

    def encode_with_offsets(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids of texts, as `encode` gives them, and where in its text each token begins and ends.

        Offsets count characters of the text as it was given, whatever the tokenizer makes of it first; neither
        starts nor ends go back in a text. A token that ends inside a character ends where the character begins.
        What the tokenizer drops lies between tokens, before the first one or behind the last.

        Returns:
            ids of all texts, one after another, int32 [n]; tokens of each text, int64 [k]; offsets, int32 [n, 2].
        """
        ids, offsets = [np.empty(0, np.int32)], [np.empty((0, 2), np.int32)]
        for is_long, group in groupby(texts, key=_is_long):
            for text_ids, text_offsets in (
                map(self._encode_long_with_offsets, group)
                if is_long
                else self._encode_with_offsets(list(group), continued=False)
            ):
                ids.append(text_ids)
                offsets.append(text_offsets)
        return np.concatenate(ids), np.array([len(each) for each in ids[1:]], np.int64), np.concatenate(offsets)

    def encode_with_special(self, text: str) -> np.ndarray:
        """Ids of a prompt in which [MASK], [sMASK] and [gMASK] are the roles: int32 [n]."""
        parts = _BLANK.split(text)  # text, mask, text, mask, …, text
        ids = [self.encode(parts[0])]
        for blank, after in zip(parts[1::2], parts[2::2], strict=True):
            ids.append(np.array([getattr(self.special, _ROLE_OF_BLANK[blank])], np.int32))
            ids += self._encode([after], continued=True)
        return np.concatenate(ids)

    def _encode_long(self, text: str) -> np.ndarray:
        """Ids of a text, a part at a time: int32 [n]."""
        return np.concatenate([self._encode([part], continued=start > 0)[0] for start, part in self._parts(text)])

    def _encode_long_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids and offsets of a text, a part at a time: int32 [n], int32 [n, 2]."""
        ids, offsets = [], []
        for start, part in self._parts(text):
            ((part_ids, part_offsets),) = self._encode_with_offsets([part], continued=start > 0)
            ids.append(part_ids)
            offsets.append(part_offsets + start)
        return np.concatenate(ids), np.concatenate(offsets)

    def _parts(self, text: str) -> Iterator[tuple[int, str]]:
        """Where each part of a long text begins, and the part."""
        if self._safe_cut is None:
            yield 0, text
            return
        start = 0
        for part in long_texts.parts(text, self._safe_cut):
            yield start, part
            start += len(part)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of ids; special tokens are shown by their piece.

        Decode a whole sequence at once: pieces of a character, and spaces at a cut, are lost between calls.

        Raises:
            ValueError: an id outside the vocabulary (a padded row that was sampled, or ids of another tokenizer).
        """
        ids = np.asarray(ids, dtype=np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self.vocab_size):
            raise ValueError(f"ids {ids.min()}..{ids.max()} lie outside the vocabulary, 0..{self.vocab_size - 1}")
        return self._decode(ids.tolist())

    def sentence_ends(self) -> np.ndarray:
        """Which pieces end a sentence, as they contain one of . ? ! ; : newline 。？！；…: bool [vocab_size]."""
        return self._sentence_ends

    def never_generated(self) -> np.ndarray:
        """Which pieces stand for no text: the roles, [UNK], [SEP], unused ones: bool [vocab_size].

        Training gives them no example to stay away from, so generation has to.
        """
        return self._never_generated

    @cached_property
    def _never_generated(self) -> np.ndarray:
        roles = set(self.special.by_role().values())
        never = np.array([id in roles or not self._stands_for_text(id) for id in range(self.vocab_size)])
        never.setflags(write=False)  # shared by all callers
        return never

    @cached_property
    def _sentence_ends(self) -> np.ndarray:
        ends = np.zeros(self.vocab_size, bool)
        for id in np.flatnonzero(~self._never_generated).tolist():
            ends[id] = bool(_SENTENCE_END.search(self._surface(id)))
        ends.setflags(write=False)
        return ends

    @property
    def content_hash(self) -> str:
        """SHA-256 over everything that decides the ids; the same wherever the directory lies."""
        return self._description.content_hash

    @cached_property
    def _description(self) -> Description:
        return Description(
            kind=self.kind,
            vocab_size=self.vocab_size,
            special=self.special,
            pieces={role: self.piece(id) for role, id in self.special.by_role().items()},
            options=self._options(),
            sha256=hashlib.sha256(self._model).hexdigest(),
        )

    def save(self, directory: Path) -> None:
        """Write the tokenizer's two files into `directory`, which may hold others; `load_tokenizer` reads them."""
        directory.mkdir(parents=True, exist_ok=True)
        with atomic_file(directory / MODEL_FILES[self.kind]) as stream:
            stream.write(self._model)
        with atomic_file(directory / DESCRIPTION_FILE) as stream:
            stream.write(self._description.to_json().encode())


def _is_long(text: str) -> bool:
    return len(text) > long_texts.PART_CHARACTERS

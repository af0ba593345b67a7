"""Tokenizers over a SentencePiece model.

The special tokens follow the model's own pieces. The model does not know them, so no text can
produce one, and a released model (cog-pretrain, 50,000 pieces) is used as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import Self

import numpy as np
import sentencepiece

from megatron_glm.errors import TokenizerError
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.long_texts import BEFORE_ONE_SPACE, BEFORE_ONE_SPACE_OR_LINE
from megatron_glm.tokenizer.model_proto import normalizer_name
from megatron_glm.tokenizer.special import ROLE_PIECES, SpecialTokens

_SPACE = "\u2581"  # SentencePiece's own sign for a space; in a text it is read as one
_OVER_A_SPACE = re.compile(f"[^{_SPACE}]{_SPACE}")
_NORMALIZERS = frozenset({"identity", "nfkc", "nfkc_cf", "nmt_nfkc", "nmt_nfkc_cf"})  # the library's own
# The protobuf message normalizer_spec { precompiled_charsmap: ""  add_dummy_prefix: false  remove_extra_whitespaces:
# false }. Messages merge when their bytes stand one after another, and the library has no other way to a second
# reading of one model, that of text which is normalized: rules that are applied twice may change it again.
_AS_IT_IS = b"\x1a\x06\x12\x00\x18\x00\x20\x00"


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model and the pieces that follow it.

    Args:
        model: bytes of tokenizer.model.
        special: ids by role; all of them among the added pieces.
        added_pieces: how the ids after the model's own are written, in the order of the ids.

    Raises:
        TokenizerError: not a SentencePiece model, or a role whose id is not among the added pieces.
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes, special: SpecialTokens, added_pieces: Sequence[str]):
        self._processor = _processor(model)
        self._puts_a_space_in_front = self._processor.normalize("a") != "a"
        self._behind = _processor(model + _AS_IT_IS) if self._puts_a_space_in_front else self._processor
        self._added_pieces = list(added_pieces)
        self._own_pieces = self._processor.get_piece_size()
        super().__init__(model, special, self._own_pieces + len(self._added_pieces))
        for role, id in special.by_role().items():
            if id < self._own_pieces:
                raise TokenizerError(
                    f"special token '{role}': id {id} is an ordinary piece, special ones begin at {self._own_pieces}"
                )

    @classmethod
    def with_special(cls, model: bytes, added_pieces: Sequence[str]) -> Self:
        """The tokenizer whose roles are those of `added_pieces` that ROLE_PIECES names."""
        first = _processor(model).get_piece_size()
        roles = {role: piece for role, piece in ROLE_PIECES.items() if piece in added_pieces}
        ids = {role: first + added_pieces.index(piece) for role, piece in roles.items()}
        return cls(model, SpecialTokens(**ids), added_pieces)

    def _encode(self, texts: Sequence[str], *, continued: bool) -> list[np.ndarray]:
        if continued and self._puts_a_space_in_front:
            return self._behind.encode_as_numpy([self._as_continued(text) for text in texts], num_threads=1)
        return self._processor.encode_as_numpy(list(texts), num_threads=1)

    def _encode_with_offsets(self, texts: Sequence[str], *, continued: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        # At a safe cut the text's own space is read as the one that the model puts in front.
        space = continued and self._puts_a_space_in_front
        encoded = []
        for each in self._processor.encode_as_offset_mapping(list(texts), num_threads=1):
            offsets = np.array(each["offsets"], np.int32).reshape(-1, 2)
            if space:
                offsets[:1] = (0, max(1, offsets[0, 1]))
            encoded.append((np.array(each["ids"], np.int32), offsets))
        return encoded

    @cached_property
    def _safe_cut(self) -> re.Pattern[str] | None:
        normalize = self._processor.normalize
        cut = BEFORE_ONE_SPACE_OR_LINE if normalize("a\nb") == normalize("a b") else BEFORE_ONE_SPACE
        at_spaces = normalize("a b") == normalize("a") + normalize(" b")
        pieces = map(self._processor.id_to_piece, range(self._own_pieces))
        # Pieces of several words reach over a space, and rules of the user's own may do so.
        parts_words = not any(_OVER_A_SPACE.search(piece) for piece in pieces)
        return cut if at_spaces and parts_words and normalizer_name(self._model) in _NORMALIZERS else None

    def _as_continued(self, text: str) -> str:
        """The normalized text without the space that the model puts in front, but with the text's own."""
        normalized = self._processor.normalize(text).removeprefix(_SPACE)
        lost = text[:1].isspace() and not (normalized[:1].isspace() or normalized.startswith(_SPACE))
        return _SPACE + normalized if lost else normalized

    def _decode(self, ids: list[int]) -> str:
        text = ""
        processor = self._processor
        for ordinary, group in groupby(ids, key=lambda id: id < self._own_pieces):
            run = list(group)
            text += processor.decode(run) if ordinary else "".join(map(self.piece, run))
            processor = self._behind  # the space in front is the text's own, except at the start
        return text

    def _stands_for_text(self, id: int) -> bool:
        is_own = id < self._own_pieces
        model = self._processor
        return is_own and not (model.is_control(id) or model.is_unknown(id) or model.is_unused(id))

    def _surface(self, id: int) -> str:
        if self._processor.is_byte(id):
            return chr(int(self.piece(id)[1:-1], 16))  # "<0x0A>"; a byte from 0x80 is part of a character
        return self.piece(id).replace(_SPACE, " ")

    def piece(self, id: int) -> str:
        return self._added_pieces[id - self._own_pieces] if id >= self._own_pieces else self._processor.id_to_piece(id)

    def _options(self) -> dict:
        return {"added_pieces": self._added_pieces}


def _processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, OSError) as error:
        raise TokenizerError("not a SentencePiece model; write it again") from error

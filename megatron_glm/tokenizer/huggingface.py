"""WordPiece and byte-level BPE over the Hugging Face `tokenizers` library."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import tokenizers

from megatron_glm.errors import TokenizerError
from megatron_glm.tokenizer.base import Kind, Tokenizer
from megatron_glm.tokenizer.forms import BERT_WORDPIECE, BYTE_LEVEL_BPE, has_form
from megatron_glm.tokenizer.long_texts import BEFORE_SPACE, BEFORE_SPACE_OR_CHINESE
from megatron_glm.tokenizer.special import SpecialTokens

_BRACKETED = re.compile(r"\[.+\]")


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer.json of the `tokenizers` library.

    Args:
        kind: "wordpiece" or "bpe" (byte-level).
        model: bytes of tokenizer.json.
        special: ids by role.
        prefix_space: put a space before the first word, so that it is the same piece as elsewhere; `decode`
            takes it away again.

    Raises:
        TokenizerError: not a tokenizer.json.
    """

    def __init__(self, kind: Kind, model: bytes, special: SpecialTokens, *, prefix_space: bool):
        # Work is spread over processes here; the library's own threads would only get in their way, and
        # after a fork they are refused with a warning. The user's own choice stands.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            self._backend = _load(model)
        except Exception as error:  # the library raises bare exceptions
            raise TokenizerError(f"not a tokenizer.json of the tokenizers library ({error}); write it again") from error
        self._backend.encode_special_tokens = True  # text that spells a special token is plain text
        self._backend.no_truncation()  # both may be baked into a file, and would change documents silently
        self._backend.no_padding()
        self.kind = kind
        self.prefix_space = prefix_space
        self._bytes_of = {sign: byte for byte, sign in enumerate(_byte_signs())} if kind == "bpe" else {}
        super().__init__(model, special, self._backend.get_vocab_size(with_added_tokens=True))
        self._roles = frozenset(special.by_role().values())
        added = self._backend.get_added_tokens_decoder()
        self._special_pieces = frozenset(id for id, piece in added.items() if piece.special)

    @property
    def model(self) -> bytes:
        """Bytes of tokenizer.json."""
        return self._model

    def with_prefix_space(self, texts: Sequence[str]) -> list[str]:
        """The texts as their first words are to be read."""
        return [" " + text if text else text for text in texts] if self.prefix_space else list(texts)

    def _encode(self, texts: Sequence[str], *, continued: bool) -> list[np.ndarray]:
        spaced = list(texts) if continued else self.with_prefix_space(texts)
        encodings = self._backend.encode_batch_fast(spaced, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    def _encode_with_offsets(self, texts: Sequence[str], *, continued: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        shift = int(self.prefix_space and not continued)
        spaced = list(texts) if continued else self.with_prefix_space(texts)
        encoded = []
        for encoding in self._backend.encode_batch(spaced, add_special_tokens=False):
            offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
            # Tokens that share a character all have its end; only the last of them ends there.
            offsets[:-1, 1] = np.minimum(offsets[:-1, 1], offsets[1:, 0])
            offsets = np.maximum.accumulate(np.maximum(offsets - shift, 0), axis=0)
            encoded.append((np.array(encoding.ids, np.int32), offsets))
        return encoded

    @cached_property
    def _safe_cut(self) -> re.Pattern[str] | None:
        definition = json.loads(self._model)
        if has_form(definition, BYTE_LEVEL_BPE):
            return BEFORE_SPACE
        return BEFORE_SPACE_OR_CHINESE if has_form(definition, BERT_WORDPIECE) else None

    def _decode(self, ids: list[int]) -> str:
        text = self._backend.decode(ids, skip_special_tokens=False)
        starts_with_text = bool(ids) and ids[0] not in self._roles
        return text.removeprefix(" ") if self.prefix_space and starts_with_text else text

    def _stands_for_text(self, id: int) -> bool:
        # BERT writes what is no text in brackets, [unused7] too; its own pre-tokenizer parts brackets from words.
        bracketed = self.kind == "wordpiece" and _BRACKETED.fullmatch(self.piece(id))
        return id not in self._special_pieces and not bracketed

    def _surface(self, id: int) -> str:
        piece = self.piece(id)
        if not self._bytes_of:
            return piece
        return bytes(self._bytes_of[sign] for sign in piece if sign in self._bytes_of).decode("utf-8", errors="ignore")

    def piece(self, id: int) -> str:
        return self._backend.id_to_token(id)

    def _options(self) -> dict:
        return {"prefix_space": self.prefix_space}


def _load(model: bytes) -> tokenizers.Tokenizer:
    # glibc gives each thread memory of its own. What loading leaves behind is full of holes, and encoding, which
    # allocates several times a token, takes a third longer in them: so they are left to a thread that ends.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(tokenizers.Tokenizer.from_buffer, model).result()


def _byte_signs() -> list[str]:
    """The printable character by which byte-level BPE writes each of the 256 bytes (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unprintable = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + unprintable.index(byte)) for byte in range(256)]

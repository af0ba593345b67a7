"""From a directory to a tokenizer, or to one line that says what is wrong with it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from megatron_glm.errors import TokenizerError
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.description import DESCRIPTION_FILE, MODEL_FILES, Description

_WRITERS = "python -m data_tools.train_tokenizer or data_tools.import_tokenizer"


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """The tokenizer of a directory written by `data_tools.train_tokenizer` or `import_tokenizer`, or of a release.

    Raises:
        TokenizerError: no such directory, a missing, broken or changed file, special ids that coincide
            or lie outside the vocabulary.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise TokenizerError(f"no tokenizer directory '{directory}' (write one by {_WRITERS})")
    description = _read_description(directory)
    path = directory / MODEL_FILES[description.kind]
    model = _read(path)
    found = hashlib.sha256(model).hexdigest()
    if found != description.sha256:
        raise TokenizerError(
            f"'{path}' was changed: its SHA-256 is {found[:12]}…, {DESCRIPTION_FILE} says {description.sha256[:12]}…;"
            " restore it or write the tokenizer again"
        )
    try:
        tokenizer = _build(description, model)
    except TokenizerError as error:
        raise TokenizerError(f"tokenizer '{directory}': {error}") from error
    if tokenizer.vocab_size != description.vocab_size:
        raise TokenizerError(
            f"'{directory / DESCRIPTION_FILE}': vocab_size is {description.vocab_size}, but the pieces are"
            f" {tokenizer.vocab_size}; write the tokenizer again"
        )
    return tokenizer


def _read_description(directory: Path) -> Description:
    path = directory / DESCRIPTION_FILE
    text = _read(path)
    try:
        return Description.from_json(text.decode())
    except UnicodeDecodeError as error:
        raise TokenizerError(f"'{path}': broken: not UTF-8; write the tokenizer again") from error
    except TokenizerError as error:
        raise TokenizerError(f"'{path}': {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"'{path}': {error.strerror} (write the tokenizer by {_WRITERS})") from error


def _build(description: Description, model: bytes) -> Tokenizer:
    # A back end is imported only when it is used: either takes a tenth of a second.
    if description.kind == "sentencepiece":
        from megatron_glm.tokenizer.sentencepiece_model import SentencePieceTokenizer

        added = description.options.get("added_pieces")
        if not isinstance(added, list) or not all(isinstance(piece, str) for piece in added):
            raise TokenizerError(f"options.added_pieces: expected a list of strings, got {added!r}")
        return SentencePieceTokenizer(model, description.special, added)

    from megatron_glm.tokenizer.huggingface import HuggingFaceTokenizer

    prefix_space = description.options.get("prefix_space")
    if not isinstance(prefix_space, bool):
        raise TokenizerError(f"options.prefix_space: expected true or false, got {prefix_space!r}")
    return HuggingFaceTokenizer(description.kind, model, description.special, prefix_space=prefix_space)

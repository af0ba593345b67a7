"""Where the commands that make a tokenizer put it, and what they say of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from megatron_glm.errors import TokenizerError
from megatron_glm.files import atomic_directory

if TYPE_CHECKING:
    from megatron_glm.tokenizer.base import Tokenizer


def check_output(directory: Path) -> None:
    """Refuse a directory that holds something, before any work is done.

    Raises:
        TokenizerError: `directory` is a file, or not empty.
    """
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise TokenizerError(f"--output: '{directory}' exists already; remove it or choose another name")


def write_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Publish a tokenizer directory and print its size, ids and hash.

    Raises:
        TokenizerError: the directory exists already or cannot be written.
    """
    check_output(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with atomic_directory(directory) as temporary:
            tokenizer.save(temporary)
    except OSError as error:
        raise TokenizerError(f"--output: '{directory}': {error.strerror or error}") from error
    roles = "  ".join(f"{role} {tokenizer.piece(id)} {id}" for role, id in tokenizer.special.by_role().items())
    print(f"{directory}: {tokenizer.kind}, {tokenizer.vocab_size} ids, hash {tokenizer.content_hash[:12]}")
    print(f"special tokens: {roles}")

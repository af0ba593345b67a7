"""From an entry of `data.sources` to its documents."""

from __future__ import annotations

from pathlib import Path

from megatron_glm.config.schema import Source
from megatron_glm.data.manifest import SplitName
from megatron_glm.data.pair_set import OPEN_PAIRS, PairSet
from megatron_glm.data.prefixes import PrefixSet, expand, file_of
from megatron_glm.data.shards import ShardSet
from megatron_glm.errors import DataError, TokenizerError
from megatron_glm.tokenizer.base import Tokenizer


def open_documents(
    source: Source, field: str, split: SplitName, tokenizer: Tokenizer, *, open_pairs: int = OPEN_PAIRS
) -> PairSet:
    """The documents of one source; there may be none.

    Args:
        field: its place in the configuration, such as `data.sources[0]`, for errors.
        open_pairs: how many stay open, at most.

    Raises:
        DataError: files that are missing, damaged or of an unknown format; held-out pairs that are trained on.
        TokenizerError: shards written with another tokenizer. Of prefixes no one knows the tokenizer.
    """
    if source.path is None:
        prefixes = source.prefixes if split == "train" else source.held_out_prefixes
        try:
            if split == "held_out":
                _check_untrained(source)
            return PrefixSet(
                prefixes or (), num_ids=tokenizer.vocab_size, eos=tokenizer.special.eos, open_pairs=open_pairs
            )
        except DataError as error:
            key = "prefixes" if split == "train" else "held_out_prefixes"
            raise DataError(f"{field}.{key}: {error}") from error
    field = f"{field}.path"
    try:
        shards = ShardSet(Path(source.path), split, open_pairs=open_pairs)
    except DataError as error:
        raise DataError(f"{field}: {error}") from error
    written_with = shards.manifest["tokenizer"]["hash"]
    if written_with != tokenizer.content_hash:
        raise TokenizerError(
            f"{field}: '{source.path}' was written with the tokenizer {written_with}, but "
            f"tokenizer.path holds {tokenizer.content_hash}; use the tokenizer of the data or preprocess again"
        )
    return shards


def _check_untrained(source: Source) -> None:
    """A pattern of training pairs is easily one of the held-out ones too."""
    held_out = expand(source.held_out_prefixes or ())
    trained = {file_of(path) for path in expand(source.prefixes or ())} if held_out else set()
    for path in held_out:
        if file_of(path) in trained:
            raise DataError(f"'{path}' is one of the training pairs too (prefixes); take it out of one of the two")

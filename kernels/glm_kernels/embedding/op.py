"""The sum of word, position and block-position embeddings, with dropout: one entry for all devices.

Where the word table is divided over processes the sum has two halves: `own_words` of each process, which the caller
adds up, and `add_positions` once after that.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from glm_kernels.dispatch import Backend, runs_on_triton
from glm_kernels.dropout.op import HiddenDropout, dropout_add
from glm_kernels.embedding.fused import fused_embedding


def embedding(
    input_ids: Tensor,
    position_ids: Tensor,
    block_position_ids: Tensor,
    word: Tensor,
    position: Tensor,
    block_position: Tensor,
    *,
    dropout: HiddenDropout | None = None,
    deterministic: bool | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """What a token starts with: the sum of its rows of three tables, with dropout.

    Args:
        input_ids, position_ids, block_position_ids: int64 [T].
        word: [V, H]. position, block_position: [P + 1, H].
        deterministic: the tables' gradients have the same bits every time; default: as torch was told by
            torch.use_deterministic_algorithms. On a CPU they always do.
        backend: see dispatch.runs_on_triton.

    Returns:
        [T, H].

    Source: GLM paper, section 2.2.1 (2D positional encoding).
    """
    ids = (input_ids, position_ids, block_position_ids)
    if runs_on_triton(backend, word):
        return _fused(ids, (None, word, position, block_position), dropout, deterministic)
    # F.embedding, not indexing: its backward sums into the rows without sorting.
    words = F.embedding(input_ids, word)
    return add_positions(
        words, position_ids, block_position_ids, position, block_position, dropout=dropout, backend=backend
    )


def own_words(
    input_ids: Tensor,
    word: Tensor,
    *,
    first_word: int,
    deterministic: bool | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The embeddings of the words that a shard of the table has, 0 for the others: int64 [T], [V, H] -> [T, H].

    Args: as `embedding`.
        first_word: id of the shard's first row.
    """
    if runs_on_triton(backend, word):
        ids = (input_ids, input_ids, input_ids)  # positions have no table here
        return _fused(ids, (None, word, None, None), None, deterministic, first_word=first_word, sharded=True)
    local = input_ids - first_word
    elsewhere = (local < 0) | (local >= word.shape[0])
    return F.embedding(local.masked_fill(elsewhere, 0), word).masked_fill(elsewhere[:, None], 0.0)


def add_positions(
    words: Tensor,
    position_ids: Tensor,
    block_position_ids: Tensor,
    position: Tensor,
    block_position: Tensor,
    *,
    dropout: HiddenDropout | None = None,
    deterministic: bool | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The embeddings of the words [T, H], and those of their two positions, with dropout: [T, H]. See `embedding`."""
    if runs_on_triton(backend, words):
        ids = (position_ids, position_ids, block_position_ids)  # words have no table here
        return _fused(ids, (words, None, position, block_position), dropout, deterministic)
    total = words + F.embedding(position_ids, position) + F.embedding(block_position_ids, block_position)
    if dropout is None:
        return total
    return dropout_add(
        total,
        None,
        probability=dropout.probability,
        row_keys=dropout.row_keys,
        key=dropout.key,
        places=dropout.places,
        backend=backend,
    )


def _fused(
    ids: tuple[Tensor, Tensor, Tensor],
    terms: tuple[Tensor | None, ...],
    dropout: HiddenDropout | None,
    deterministic: bool | None,
    *,
    first_word: int = 0,
    sharded: bool = False,
) -> Tensor:
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    token_key, philox_key, probability = None, 0, 0.0
    if dropout is not None and dropout.probability:
        token_key, philox_key, probability = dropout.token_key(), dropout.key.philox_key(), dropout.probability
    return fused_embedding(*terms, *ids, token_key, first_word, sharded, philox_key, probability, deterministic)

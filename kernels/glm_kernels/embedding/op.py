"""The sum of word, position and block-position embeddings: one entry for all devices."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def embedding(
    input_ids: Tensor,
    position_ids: Tensor,
    block_position_ids: Tensor,
    word: Tensor,
    position: Tensor,
    block_position: Tensor,
) -> Tensor:
    """What a token starts with: the sum of its rows of three tables.

    Args:
        input_ids, position_ids, block_position_ids: int64 [T].
        word: [V, H]. position, block_position: [P + 1, H].

    Returns:
        [T, H].

    Source: GLM paper, section 2.2.1 (2D positional encoding).
    """
    # F.embedding, not indexing: its backward sums into the rows without sorting.
    return (
        F.embedding(input_ids, word)
        + F.embedding(position_ids, position)
        + F.embedding(block_position_ids, block_position)
    )

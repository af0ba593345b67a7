"""The sum of the three embeddings by plain indexing."""

from __future__ import annotations

from torch import Tensor


def embedding_reference(
    input_ids: Tensor,
    position_ids: Tensor,
    block_position_ids: Tensor,
    word: Tensor,
    position: Tensor,
    block_position: Tensor,
) -> Tensor:
    """word[input_ids] + position[position_ids] + block_position[block_position_ids]; int [T] -> [T, H]."""
    return word[input_ids] + position[position_ids] + block_position[block_position_ids]

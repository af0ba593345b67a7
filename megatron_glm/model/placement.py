"""Where the tokens, heads and words of a row are between the layers; here: all in one place.

A model that is spread over processes gets another placement (parallel/placement.py); the modules stay as
they are.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from glm_kernels.dropout import HiddenDropout
from glm_kernels.embedding import embedding
from glm_kernels.loss import smoothed_cross_entropy
from megatron_glm.model.layer import select_tokens


class Placement(Protocol):
    """What the model asks of its surroundings.

    Attributes:
        first_head: the number of this process's first attention head.
    """

    first_head: int

    def held_tokens(self, length: int, device: object) -> Tensor | None:
        """The places of a row of T tokens that are held between the layers: int64 [t]; None: all."""

    def embed(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        block_position_ids: Tensor,
        word: Tensor,
        position: Tensor,
        block_position: Tensor,
        dropout: HiddenDropout | None = None,
    ) -> Tensor:
        """The sum of the three embeddings of the tokens held, with dropout: int64 [T] three times -> [t, H]."""

    def select(self, hidden: Tensor, places: Tensor) -> Tensor:
        """The hidden states of some tokens of the row: [t, H], int64 [N] -> [N, H]."""

    def token_loss(
        self, hidden: Tensor, word: Tensor, target_ids: Tensor, *, num_valid: int, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """The smoothed loss and −log softmax(hidden · wordᵀ)[target]: [N, H], int64 [N] -> fp32 [N] twice, in nats."""


class OnePlace:
    """Everything is here."""

    first_head = 0

    def held_tokens(self, length: int, device: object) -> None:
        return None

    def embed(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        block_position_ids: Tensor,
        word: Tensor,
        position: Tensor,
        block_position: Tensor,
        dropout: HiddenDropout | None = None,
    ) -> Tensor:
        ids, tables = (input_ids, position_ids, block_position_ids), (word, position, block_position)
        # A step that is done again, after a resume say, has the same bits.
        return embedding(*ids, *tables, dropout=dropout, deterministic=True)

    def select(self, hidden: Tensor, places: Tensor) -> Tensor:
        return select_tokens(hidden, places)

    def token_loss(
        self, hidden: Tensor, word: Tensor, target_ids: Tensor, *, num_valid: int, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        return smoothed_cross_entropy(hidden, word, target_ids, num_valid=num_valid, label_smoothing=label_smoothing)

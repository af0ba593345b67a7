"""GLM over a flat row of tokens.

    ids, two rows of positions [T] → sum of three embeddings → layers → hidden states at the targets [N, H]
    → −log softmax over the word table (tied, without bias) [N]

Plain modules: no process groups, no ranks. Parameters have the names of the original release.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glm_kernels.attention import Visibility
from glm_kernels.dropout import RowKeys
from megatron_glm.config.schema import AttentionBackend, Model, Recompute
from megatron_glm.model.gradient_scale import scale_gradient
from megatron_glm.model.initialization import Take, initialize
from megatron_glm.model.placement import OnePlace, Placement
from megatron_glm.model.row import Dropout, Row
from megatron_glm.model.sizes import padded_vocab_size, parameter_shapes
from megatron_glm.model.transformer import Transformer

Shard = Callable[[nn.Module], tuple[Placement, Take]]


class GLM(nn.Module):
    """The model of the GLM paper (arXiv 2103.10360, section 2).

    Args:
        config: its sizes.
        num_ids: ids of the tokenizer; the word table is padded beyond them.
        seed: of the initial values; None leaves them unset, for weights that are loaded next.
        recompute: activation checkpointing; see Transformer.
        shard: makes this process's part of the modules before they have values, and returns where it is and
            what it has of a whole parameter; default: everything.
        layers: of a stage of a pipeline, in order; the first stage has the embeddings too, the last one norm and
            word table. Default: all layers.
        attention_backend: what computes attention; see glm_kernels.attention.
    """

    def __init__(
        self,
        config: Model,
        *,
        num_ids: int,
        seed: int | None,
        recompute: Recompute = "none",
        shard: Shard | None = None,
        layers: range | None = None,
        attention_backend: AttentionBackend = "auto",
    ):
        super().__init__()
        self.config = config
        self.num_ids = num_ids
        self.attention_backend: AttentionBackend = attention_backend
        held = range(config.num_layers) if layers is None else layers
        self.is_first, self.is_last = 0 in held, config.num_layers - 1 in held
        # On the meta device first: the modules' own random defaults would be drawn for nothing.
        with torch.device("meta"):
            words = nn.Embedding(padded_vocab_size(config, num_ids), config.hidden_size)
            self.word_embeddings = words if self.is_first or self.is_last else None
            self.transformer = Transformer(config, recompute=recompute, held=held)
            placement, take = shard(self) if shard else (OnePlace(), None)
        self.placement: Placement = placement
        self.to_empty(device=torch.get_default_device())
        if seed is not None:
            initialize(self, parameter_shapes(config, num_ids), config, seed, take)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        block_position_ids: Tensor,
        visibility: Visibility,
        target_index: Tensor,
        row_keys: RowKeys | None = None,
        dropout_seed: int | None = None,
        embedding_gradient: float = 1.0,
    ) -> Tensor:
        """Hidden states at the places target_index: int64 [T] three times, int64 [N] -> [N, H].

        Dropout acts in training mode, keyed by dropout_seed and row_keys. What reaches the word table from below
        is multiplied by embedding_gradient.

        Raises:
            ValueError: dropout is to act, and its keys are missing.
        """
        row = self.row(visibility, row_keys, dropout_seed)
        hidden = self.embed(input_ids, position_ids, block_position_ids, row, embedding_gradient)
        return self.transformer(hidden, row, target_index)

    def row(self, visibility: Visibility, row_keys: RowKeys | None, dropout_seed: int | None) -> Row:
        """What the layers need to know of a row; raises ValueError as `forward` does."""
        return Row(visibility, self._dropout(row_keys, dropout_seed), self.placement, self.attention_backend)

    def embed(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        block_position_ids: Tensor,
        row: Row,
        embedding_gradient: float = 1.0,
    ) -> Tensor:
        """What the first layer reads: int64 [T] three times -> [t, H] of the tokens held."""
        return self.placement.embed(
            input_ids,
            position_ids,
            block_position_ids,
            scale_gradient(self.word_embeddings.weight, embedding_gradient),
            self.transformer.position_embeddings.weight,
            self.transformer.block_position_embeddings.weight,
            row.embedding_dropout(),
        )

    def token_loss(self, hidden: Tensor, target_ids: Tensor) -> Tensor:
        """Negative log-likelihood of each target: [N, H], int64 [N] -> fp32 [N], in nats."""
        return self.smoothed_loss(hidden, target_ids, 0.0)[0]

    def smoothed_loss(self, hidden: Tensor, target_ids: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        """The loss of each target with label smoothing, and `token_loss` without gradient: fp32 [N] twice, in nats."""
        return self.placement.token_loss(
            hidden,
            self.word_embeddings.weight,
            target_ids,
            num_valid=self.num_ids,
            label_smoothing=label_smoothing,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the tokenizer's ids, padded rows left out: [N, H] -> [N, num_ids]."""
        return F.linear(hidden, self.word_embeddings.weight[: self.num_ids])

    def _dropout(self, row_keys: RowKeys | None, seed: int | None) -> Dropout | None:
        hidden, attention = self.config.hidden_dropout, self.config.attention_dropout
        if not self.training or hidden == attention == 0:
            return None
        if row_keys is None or seed is None:
            raise ValueError(
                f"training with hidden_dropout {hidden}, attention_dropout {attention} needs row_keys and dropout_seed"
            )
        return Dropout(hidden, attention, row_keys, seed)

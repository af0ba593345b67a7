"""GLM over a flat row of tokens.

    ids, two rows of positions [T] → sum of three embeddings → layers → hidden states at the targets [N, H]
    → −log softmax over the word table (tied, without bias) [N]

Plain modules: no process groups, no ranks. Parameters have the names of the original release.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glm_kernels.attention import Visibility
from glm_kernels.dropout import RowKeys, Site
from glm_kernels.embedding import embedding
from glm_kernels.loss import linear_cross_entropy
from megatron_glm.config.schema import Model
from megatron_glm.model.initialization import initialize
from megatron_glm.model.row import Dropout, Row
from megatron_glm.model.sizes import padded_vocab_size
from megatron_glm.model.transformer import Transformer


class GLM(nn.Module):
    """The model of the GLM paper (arXiv 2103.10360, section 2).

    Args:
        config: its sizes.
        num_ids: ids of the tokenizer; the word table is padded beyond them.
        seed: of the initial values; None leaves them unset, for weights that are loaded next.
        recompute: activation checkpointing of every layer.
    """

    def __init__(self, config: Model, *, num_ids: int, seed: int | None, recompute: bool = False):
        super().__init__()
        self.config = config
        self.num_ids = num_ids
        # On the meta device first: the modules' own random defaults would be drawn for nothing.
        with torch.device("meta"):
            self.word_embeddings = nn.Embedding(padded_vocab_size(config, num_ids), config.hidden_size)
            self.transformer = Transformer(config, recompute=recompute)
        self.to_empty(device=torch.get_default_device())
        if seed is not None:
            initialize(self, config, seed)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        block_position_ids: Tensor,
        visibility: Visibility,
        target_index: Tensor,
        row_keys: RowKeys | None = None,
        dropout_seed: int | None = None,
    ) -> Tensor:
        """Hidden states at the places target_index: int64 [T] three times, int64 [N] -> [N, H].

        Dropout acts in training mode, keyed by dropout_seed and row_keys.

        Raises:
            ValueError: dropout is to act, and its keys are missing.
        """
        row = Row(visibility, self._dropout(row_keys, dropout_seed))
        hidden = embedding(
            input_ids,
            position_ids,
            block_position_ids,
            self.word_embeddings.weight,
            self.transformer.position_embeddings.weight,
            self.transformer.block_position_embeddings.weight,
        )
        hidden = row.add(layer=0)(hidden, None, Site.EMBEDDING)
        return self.transformer(hidden, row, target_index)

    def token_loss(self, hidden: Tensor, target_ids: Tensor) -> Tensor:
        """Negative log-likelihood of each target: [N, H], int64 [N] -> fp32 [N], in nats."""
        return linear_cross_entropy(hidden, self.word_embeddings.weight, target_ids, num_valid=self.num_ids)

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

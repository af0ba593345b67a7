"""What the layers need to know of the row they run on, handed to each as two functions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from glm_kernels.attention import Visibility, attention
from glm_kernels.dropout import DropoutKey, HiddenDropout, RowKeys, Site, dropout_add
from megatron_glm.config.schema import AttentionBackend
from megatron_glm.model.attention import Attend
from megatron_glm.model.layer import Add, add_residual
from megatron_glm.model.placement import Placement


@dataclass(frozen=True)
class Dropout:
    """The dropout of one row: its probabilities and what the masks are keyed by."""

    hidden: float
    attention: float
    row_keys: RowKeys
    seed: int


@dataclass(frozen=True)
class Row:
    """Who sees whom, and what is dropped; no dropout where it is None."""

    visibility: Visibility
    dropout: Dropout | None
    placement: Placement
    attention_backend: AttentionBackend = "auto"

    def attend(self, layer: int) -> Attend:
        """The attention of a layer over this row."""

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if self.dropout is None:
                return attention(query, key, value, self.visibility, backend=self.attention_backend)
            return attention(
                query,
                key,
                value,
                self.visibility,
                dropout=self.dropout.attention,
                row_keys=self.dropout.row_keys,
                dropout_key=DropoutKey(self.dropout.seed, layer, Site.ATTENTION),
                first_head=self.placement.first_head,
                backend=self.attention_backend,
            )

        return attend

    def embedding_dropout(self) -> HiddenDropout | None:
        """What is dropped from the embeddings of the tokens held."""
        dropout = self.dropout
        if dropout is None:
            return None
        key = DropoutKey(dropout.seed, 0, Site.EMBEDDING)
        return HiddenDropout(dropout.hidden, dropout.row_keys, key, self._held_tokens(dropout))

    def add(self, layer: int, places: Tensor | None = None) -> Add:
        """The residual sum of a layer, with the dropout of the tokens held, or of those at int64 [N] `places`."""
        dropout = self.dropout
        if dropout is None:
            return add_residual
        if places is None:
            places = self._held_tokens(dropout)

        def add(x: Tensor, residual: Tensor | None, site: Site) -> Tensor:
            return dropout_add(
                x,
                residual,
                probability=dropout.hidden,
                row_keys=dropout.row_keys,
                key=DropoutKey(dropout.seed, layer, site),
                places=places,
            )

        return add

    def _held_tokens(self, dropout: Dropout) -> Tensor | None:
        return self.placement.held_tokens(self.visibility.length, dropout.row_keys.sample.device)

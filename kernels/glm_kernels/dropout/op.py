"""Residual plus keyed dropout: one entry for all devices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glm_kernels.dispatch import Backend, runs_on_triton
from glm_kernels.dropout.fused import fused_dropout_add
from glm_kernels.dropout.keys import DropoutKey, RowKeys
from glm_kernels.dropout.masks import hidden_drops, keep_scale, kept_bytes


@dataclass(frozen=True)
class HiddenDropout:
    """The dropout of the hidden states at one site of a row: the arguments of `dropout_add`, by the same names."""

    probability: float
    row_keys: RowKeys
    key: DropoutKey
    places: Tensor | None = None

    def token_key(self) -> Tensor:
        """The keys of the tokens at the places: int64 [N]."""
        keys = self.row_keys.token_key
        return keys if self.places is None else keys.index_select(0, self.places)


def dropout_add(
    x: Tensor,
    residual: Tensor | None,
    *,
    probability: float,
    row_keys: RowKeys,
    key: DropoutKey,
    places: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """residual + dropout(x), or dropout(x) alone; [T, H] -> [T, H].

    The mask depends on the key, the sample and the token's place in it, not on the row. The kernels have masks of
    their own, since a CPU would draw theirs for too long.

    Args:
        places: int64 [N], the tokens of the row that x and residual [N, H] are of; default: all, in order.
        backend: see dispatch.runs_on_triton.
    """
    if probability and runs_on_triton(backend, x):
        return fused_dropout_add(x, residual, row_keys.token_key, places, key.philox_key(), probability)
    if probability:
        drops = hidden_drops(probability, x.shape[1], row_keys, key)
        if places is not None:
            drops = drops.index_select(0, places)
        x = x * kept_bytes(drops)
        if residual is None:
            return x * keep_scale(probability)
        return torch.add(residual, x, alpha=keep_scale(probability))
    return x if residual is None else residual + x

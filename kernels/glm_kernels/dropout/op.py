"""Residual plus keyed dropout: one entry for all devices."""

from __future__ import annotations

import torch
from torch import Tensor

from glm_kernels.dropout.keys import DropoutKey, RowKeys
from glm_kernels.dropout.masks import hidden_drops, keep_scale


def dropout_add(
    x: Tensor,
    residual: Tensor | None,
    *,
    probability: float,
    row_keys: RowKeys,
    key: DropoutKey,
    places: Tensor | None = None,
) -> Tensor:
    """residual + dropout(x), or dropout(x) alone; [T, H] -> [T, H].

    The mask depends on the key, the sample and the token's place in it, not on the row.

    Args:
        places: int64 [N], the tokens of the row that x and residual [N, H] are of; default: all, in order.
    """
    if probability:
        drops = hidden_drops(probability, x.shape[1], row_keys, key)
        if places is not None:
            drops = drops.index_select(0, places)
        # Filling keeps a bool mask for the backward pass, where a product would keep floats.
        x = x.masked_fill(drops, 0.0)
        if residual is None:
            return x * keep_scale(probability)
        return torch.add(residual, x, alpha=keep_scale(probability))
    return x if residual is None else residual + x

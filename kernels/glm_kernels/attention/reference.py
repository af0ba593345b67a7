"""Masked attention as the formula says it, quadratic in the row: what every fast path is compared with."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    *,
    dropout: float = 0.0,
    dropped: Tensor | None = None,
) -> Tensor:
    """softmax(QKᵀ/√d) V over the visible keys; [T, heads, d] each -> [T, heads, d].

    Args:
        visible: bool [T, T]; a query that sees nothing gets zeros.
        dropout: probability with which `dropped` was drawn.
        dropped: bool [heads, T, T], true where a probability is dropped.
    """
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(~visible, -math.inf)
    # A row of -inf only has no softmax: give it any, and take its result away afterwards.
    sees_something = visible.any(dim=1)
    weights = scores.masked_fill(~sees_something[:, None], 0.0).softmax(dim=-1)
    if dropped is not None:
        weights = weights.masked_fill(dropped, 0.0) / (1.0 - dropout)
    return torch.einsum("hqk,khd->qhd", weights, value) * sees_something[:, None, None]

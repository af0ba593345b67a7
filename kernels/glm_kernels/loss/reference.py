"""The loss of the tied output layer from the full matrix of logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def linear_cross_entropy_reference(
    hidden: Tensor, weight: Tensor, target_ids: Tensor, *, num_valid: int, label_smoothing: float = 0.0
) -> Tensor:
    """−log softmax(hidden · weight[:num_valid]ᵀ)[target]; [N, H], [V, H], int64 [N] -> at least fp32 [N]."""
    logits = F.linear(hidden, weight[:num_valid])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, target_ids, reduction="none", label_smoothing=label_smoothing)

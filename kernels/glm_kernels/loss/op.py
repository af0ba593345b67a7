"""Cross-entropy of the tied output layer: one entry for all devices."""

from __future__ import annotations

from torch import Tensor

from glm_kernels.loss.chunked import ChunkedLinearCrossEntropy


def linear_cross_entropy(hidden: Tensor, weight: Tensor, target_ids: Tensor, *, num_valid: int) -> Tensor:
    """Negative log-likelihood of each target under softmax(hidden · weightᵀ).

    Args:
        hidden: [N, H], N may be 0.
        weight: [V, H]; rows from num_valid on are padding of the vocabulary and take no part.
        target_ids: int64 [N], in range(num_valid).

    Returns:
        fp32 [N] (fp64 for fp64 inputs), in nats.
    """
    return ChunkedLinearCrossEntropy.apply(hidden, weight, target_ids, num_valid)

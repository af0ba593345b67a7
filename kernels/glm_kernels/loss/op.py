"""Cross-entropy of the tied output layer: one entry for all devices."""

from __future__ import annotations

from torch import Tensor

from glm_kernels.dispatch import Backend, runs_on_triton
from glm_kernels.loss.chunked import ChunkedLinearCrossEntropy
from glm_kernels.loss.fused import fused_linear_cross_entropy


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, target_ids: Tensor, *, num_valid: int, backend: Backend = "auto"
) -> Tensor:
    """Negative log-likelihood of each target under softmax(hidden · weightᵀ).

    Args:
        hidden: [N, H], N may be 0.
        weight: [V, H]; rows from num_valid on are padding of the vocabulary and take no part.
        target_ids: int64 [N], in range(num_valid).
        backend: see dispatch.runs_on_triton.

    Returns:
        fp32 [N] (fp64 for fp64 inputs), in nats.
    """
    return smoothed_cross_entropy(
        hidden, weight, target_ids, num_valid=num_valid, label_smoothing=0.0, backend=backend
    )[0]


def smoothed_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target_ids: Tensor,
    *,
    num_valid: int,
    label_smoothing: float,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """The loss with label smoothing, and the negative log-likelihood without it and without gradient.

    Args: as `linear_cross_entropy`.
        label_smoothing: share of the target distribution that is uniform over range(num_valid); 0: none.

    Returns:
        fp32 [N] twice (fp64 for fp64 inputs), in nats.
    """
    if runs_on_triton(backend, hidden):
        return fused_linear_cross_entropy(hidden, weight, target_ids, num_valid, label_smoothing)[:2]
    return ChunkedLinearCrossEntropy.apply(hidden, weight, target_ids, num_valid, label_smoothing)

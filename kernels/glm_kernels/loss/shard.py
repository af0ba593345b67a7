"""What one shard of the vocabulary adds to the loss and to its gradients.

A caller that holds the whole vocabulary makes the loss of it as it is. One that holds a shard adds up the shards in
between: the largest of the normalizers, then the sums of their exponentials and of the other two.
"""

from __future__ import annotations

from torch import Tensor

from glm_kernels.dispatch import Backend, runs_on_triton
from glm_kernels.loss import shard_torch, shard_triton


def shard_statistics(
    hidden: Tensor, weight: Tensor, local_targets: Tensor, *, valid: int, backend: Backend = "auto"
) -> Tensor:
    """Three numbers a token: log-sum-exp of its logits, its target's logit, the sum of its logits.

    Args:
        hidden: [N, H], N may be 0.
        weight: [V, H], the rows of a shard; those from valid on are padding and take no part. valid may be 0.
        local_targets: int64 [N], in range(valid); −1 where another shard has the target, whose logit is 0 then. That
            of an id behind them, which no shard has, is NaN.

    Returns:
        fp32 [3, N] (fp64 for fp64 inputs); without gradient.
    """
    if runs_on_triton(backend, hidden):
        return shard_triton.statistics(hidden, weight, local_targets, valid)
    return shard_torch.statistics(hidden, weight, local_targets, valid)


def shard_gradients(
    upstream: Tensor,
    hidden: Tensor,
    weight: Tensor,
    local_targets: Tensor,
    normalizer: Tensor,
    *,
    valid: int,
    label_smoothing: float,
    num_valid: int,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """The shard's part of the gradient of hidden [N, H], and the gradient of its weight [V, H].

    Args: as `shard_statistics`.
        upstream: fp32 [N], gradient of the loss.
        normalizer: fp32 [N], log-sum-exp over all shards.
        num_valid: ids of all shards, over which label_smoothing spreads its share of the target distribution.
    """
    arguments = (upstream, hidden, weight, local_targets, normalizer, valid, label_smoothing, num_valid)
    if runs_on_triton(backend, hidden):
        return shard_triton.gradients(*arguments)
    return shard_torch.gradients(*arguments)

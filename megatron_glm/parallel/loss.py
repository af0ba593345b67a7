"""Cross-entropy of the output layer when each rank holds a shard of the vocabulary.

Each rank computes the logits of its own words, a chunk of tokens at a time, and keeps of them three numbers a
token: their log-sum-exp, the target's logit and, for label smoothing, the sum of all. Two small all-reduces for
the whole micro-batch make the loss of these. The backward pass computes the logits anew.

Source: Megatron-LM (arXiv 1909.08053, section 3), vocabulary-parallel cross-entropy.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from glm_kernels.loss.shard import shard_gradients, shard_statistics


def parallel_linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target_ids: Tensor,
    *,
    num_valid: int,
    label_smoothing: float,
    group: dist.ProcessGroup,
) -> tuple[Tensor, Tensor]:
    """The loss with label smoothing, and −log softmax(hidden · weightᵀ)[target], equal on all ranks of the group.

    The latter has no gradient; without smoothing both are the same.

    Args:
        hidden: [N, H], whole; its gradient is partial, so it comes through `to_shards`.
        weight: [V / size, H], this rank's rows of the word table, in the order of the ranks.
        target_ids: int64 [N], in range(num_valid).
        num_valid: words of the whole vocabulary; the rows after them are padding and take no part.
        label_smoothing: share of the target distribution that is uniform over range(num_valid); 0: none.

    Returns:
        fp32 [N] twice (fp64 for fp64 inputs), in nats.
    """
    return _ParallelLinearCrossEntropy.apply(hidden, weight, target_ids, num_valid, label_smoothing, group)


class _ParallelLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        weight: Tensor,
        target_ids: Tensor,
        num_valid: int,
        smoothing: float,
        group: dist.ProcessGroup,
    ) -> tuple[Tensor, Tensor]:
        first = dist.get_rank(group) * weight.shape[0]
        valid = min(max(num_valid - first, 0), weight.shape[0])
        local = target_ids - first
        local = local.where((local >= 0) & (local < valid), -1)
        # An id of no rank is none of the others' either: as one behind the last word it makes the loss NaN.
        local = local.masked_fill((target_ids < 0) | (target_ids >= num_valid), weight.shape[0])
        own, target, total = shard_statistics(hidden, weight, local, valid=valid)
        largest = own.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        sums = torch.stack([(own - largest).exp(), target, *([total] if smoothing else [])])
        dist.all_reduce(sums, group=group)
        normalizer = largest + sums[0].log()
        ctx.save_for_backward(hidden, weight, local, normalizer)
        ctx.valid, ctx.smoothing, ctx.num_valid = valid, smoothing, num_valid
        nll = normalizer - sums[1]
        # Over the whole vocabulary: a mean over this shard would be another loss on each rank.
        loss = nll + smoothing * (sums[1] - sums[2] / num_valid) if smoothing else nll.clone()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients = shard_gradients(
            upstream,
            *ctx.saved_tensors,
            valid=ctx.valid,
            label_smoothing=ctx.smoothing,
            num_valid=ctx.num_valid,
        )
        return *gradients, None, None, None, None

"""Cross-entropy of the output layer when each rank holds a shard of the vocabulary.

Each rank computes the logits of its own words, a chunk of tokens at a time, and keeps of them three numbers a
token: their log-sum-exp, the target's logit and, for label smoothing, the sum of all. Two small all-reduces for
the whole micro-batch make the loss of these. The backward pass computes the logits anew.

Source: Megatron-LM (arXiv 1909.08053, section 3), vocabulary-parallel cross-entropy.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK_LOGITS = 1 << 24  # 64 MB of fp32: far beyond where a matrix product becomes efficient


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
        rows = min(max(num_valid - first, 0), weight.shape[0])
        exact = torch.promote_types(hidden.dtype, torch.float32)
        # The logarithm of an empty sum: a shard may hold nothing but padding.
        own = torch.full(hidden.shape[:1], -torch.inf, dtype=exact, device=hidden.device)
        target, total = torch.zeros_like(own), torch.zeros_like(own)
        local = target_ids - first
        is_here = (local >= 0) & (local < rows)
        local = local.clamp(0, max(rows - 1, 0))
        for chunk in _chunks(len(hidden), rows):
            logits = F.linear(hidden[chunk], weight[:rows]).to(exact)
            own[chunk] = logits.logsumexp(dim=1)
            target[chunk] = logits.gather(1, local[chunk, None])[:, 0].where(is_here[chunk], 0.0)
            if smoothing:
                total[chunk] = logits.sum(dim=1)
        largest = own.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        sums = torch.stack([(own - largest).exp(), target, *([total] if smoothing else [])])
        dist.all_reduce(sums, group=group)
        normalizers = largest + sums[0].log()
        ctx.save_for_backward(hidden, weight, local, is_here, normalizers)
        ctx.rows, ctx.smoothing, ctx.num_valid = rows, smoothing, num_valid
        nll = normalizers - sums[1]
        # Over the whole vocabulary: a mean over this shard would be another loss on each rank.
        loss = nll + smoothing * (sums[1] - sums[2] / num_valid) if smoothing else nll.clone()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, local, is_here, normalizers = ctx.saved_tensors
        exact, own_words = normalizers.dtype, weight[: ctx.rows]
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=exact, device=weight.device)
        for chunk in _chunks(len(hidden), ctx.rows):
            logits = F.linear(hidden[chunk], own_words).to(exact)
            grad_logits = (logits - normalizers[chunk, None]).exp_()
            if ctx.smoothing:
                grad_logits -= ctx.smoothing / ctx.num_valid
            grad_logits.scatter_add_(1, local[chunk, None], (ctx.smoothing - 1.0) * is_here[chunk, None].to(exact))
            grad_logits = grad_logits.mul_(grad_loss[chunk, None]).to(hidden.dtype)
            grad_hidden[chunk] = grad_logits @ own_words
            grad_weight[: ctx.rows] += grad_logits.t() @ hidden[chunk]
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None


def _chunks(num_tokens: int, rows: int) -> list[slice]:
    if rows == 0:
        return []
    size = max(1, _CHUNK_LOGITS // rows)
    return [slice(start, min(start + size, num_tokens)) for start in range(0, num_tokens, size)]

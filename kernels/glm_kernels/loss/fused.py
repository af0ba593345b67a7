"""Cross-entropy of a linear output layer over the whole vocabulary with our kernels: one registered operation."""

from __future__ import annotations

import torch
from torch import Tensor

from glm_kernels.loss import shard_triton
from glm_kernels.operators import kernel_operator


@kernel_operator("linear_cross_entropy", hidden="float [N, H]", weight="hidden [V, H]", target_ids="int64 [N]")
def fused_linear_cross_entropy(
    hidden: Tensor, weight: Tensor, target_ids: Tensor, num_valid: int, label_smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, negative log-likelihood and normalizer of each token; [N, H], [V, H], int64 [N] -> fp32 [N] each.

    Only the loss has a gradient. Saved for it are the inputs and the normalizers.
    """
    # A negative id would be that of another shard, and there is none: let it be seen, as those beyond the last are.
    local = target_ids.where(target_ids >= 0, num_valid)
    normalizer, target, total = shard_triton.statistics(hidden, weight, local, num_valid)
    nll = normalizer - target
    return nll + label_smoothing * (target - total / num_valid), nll, normalizer.clone()


@fused_linear_cross_entropy.register_fake
def _(hidden, weight, target_ids, num_valid, label_smoothing):
    return tuple(hidden.new_empty(hidden.shape[0], dtype=torch.float32) for _ in range(3))


def _save(ctx, inputs, output):
    hidden, weight, target_ids, ctx.num_valid, ctx.label_smoothing = inputs
    ctx.save_for_backward(hidden, weight, target_ids, output[2])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, upstream, *_):
    hidden, weight, target_ids, normalizer = ctx.saved_tensors
    grad_hidden, grad_weight = shard_triton.gradients(
        upstream, hidden, weight, target_ids, normalizer, ctx.num_valid, ctx.label_smoothing, ctx.num_valid
    )
    return grad_hidden, grad_weight, None, None, None


fused_linear_cross_entropy.register_autograd(_backward, setup_context=_save)

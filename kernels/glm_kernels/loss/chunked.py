"""Cross-entropy of a linear output layer, a chunk of tokens at a time.

The logits of a micro-batch are the largest tensor of a small model: 10,000 targets x 50,304 ids
are 2 GB in fp32, and their gradient as much again. Here they live for one chunk. The backward
pass computes them anew, all but those of the last chunk: it begins where the forward pass ended.

Label smoothing mixes the target with the uniform distribution over the valid ids (Szegedy et al., 2015,
section 7): of the logits it needs their mean and nothing else.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from glm_kernels.loss.chunks import token_chunks
from glm_kernels.operators import without_autocast


class ChunkedLinearCrossEntropy(torch.autograd.Function):
    """apply(hidden [N, H], weight [V, H], target_ids [N], num_valid, smoothing) -> loss [N], nll [N], at least fp32.

    The nll has no gradient. Statistics and the gradient of the weight are accumulated in fp32 (fp64 for fp64 inputs).
    """

    @staticmethod
    @without_autocast
    def forward(
        ctx, hidden: Tensor, weight: Tensor, target_ids: Tensor, num_valid: int, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        normalizers = torch.empty(hidden.shape[0], dtype=exact, device=hidden.device)
        nll, loss = torch.empty_like(normalizers), torch.empty_like(normalizers)
        logits = None
        for chunk in token_chunks(hidden.shape[0], num_valid):
            logits = F.linear(hidden[chunk], weight[:num_valid]).to(exact)
            normalizers[chunk] = logits.logsumexp(dim=1)
            nll[chunk] = normalizers[chunk] - logits.gather(1, target_ids[chunk, None])[:, 0]
            loss[chunk] = nll[chunk]
            if smoothing:
                loss[chunk] += smoothing * (normalizers[chunk] - logits.mean(dim=1) - nll[chunk])
        # The parameter itself is saved, not its slice: a partitioned one (ZeRO-3) is gathered anew.
        ctx.save_for_backward(hidden, weight, target_ids, normalizers, logits)
        ctx.num_valid, ctx.smoothing = num_valid, smoothing
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, target_ids, normalizers, logits = ctx.saved_tensors
        exact = normalizers.dtype
        valid_weight = weight[: ctx.num_valid]
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=exact, device=weight.device)
        for chunk in reversed(token_chunks(hidden.shape[0], ctx.num_valid)):
            if chunk.stop < hidden.shape[0]:
                logits = F.linear(hidden[chunk], valid_weight).to(exact)
            grad_logits = (logits - normalizers[chunk, None]).exp_()
            if ctx.smoothing:
                grad_logits -= ctx.smoothing / ctx.num_valid
            share = grad_logits.new_full((len(logits), 1), ctx.smoothing - 1.0)
            grad_logits.scatter_add_(1, target_ids[chunk, None], share)
            grad_logits = grad_logits.mul_(grad_loss[chunk, None]).to(hidden.dtype)
            grad_hidden[chunk] = grad_logits @ valid_weight
            grad_weight[: ctx.num_valid] += grad_logits.t() @ hidden[chunk]
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None

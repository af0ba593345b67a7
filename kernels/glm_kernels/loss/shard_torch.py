"""What one shard of the vocabulary adds to the loss and to its gradients, in plain torch, on any device and type."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from glm_kernels.loss.chunks import token_chunks
from glm_kernels.operators import without_autocast


@without_autocast
def statistics(hidden: Tensor, weight: Tensor, local_targets: Tensor, valid: int) -> Tensor:
    """Log-sum-exp, target's logit and sum of the logits of each token. See shard.shard_statistics."""
    exact = torch.promote_types(hidden.dtype, torch.float32)
    found = torch.zeros(3, len(hidden), dtype=exact, device=hidden.device)
    normalizer, target, total = found
    normalizer.fill_(-torch.inf)
    is_here = (local_targets >= 0) & (local_targets < valid)
    # An id that no shard has must not go unseen, as in the kernels.
    target.masked_fill_(local_targets >= valid, torch.nan)
    for chunk in token_chunks(len(hidden), valid):
        logits = F.linear(hidden[chunk], weight[:valid]).to(exact)
        normalizer[chunk] = logits.logsumexp(dim=1)
        own = logits.gather(1, local_targets[chunk, None].clamp(0, valid - 1))[:, 0]
        target[chunk] = own.where(is_here[chunk], target[chunk])
        total[chunk] = logits.sum(dim=1)
    return found


@without_autocast
def gradients(
    upstream: Tensor,
    hidden: Tensor,
    weight: Tensor,
    local_targets: Tensor,
    normalizer: Tensor,
    valid: int,
    smoothing: float,
    num_valid: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of hidden and weight. See shard.shard_gradients."""
    exact, own_words = normalizer.dtype, weight[:valid]
    grad_hidden = torch.zeros_like(hidden)
    grad_weight = torch.zeros(weight.shape, dtype=exact, device=weight.device)
    share = (smoothing - 1.0) * ((local_targets >= 0) & (local_targets < valid)).to(exact)
    local = local_targets.clamp(0, max(valid - 1, 0))
    for chunk in token_chunks(len(hidden), valid):
        logits = F.linear(hidden[chunk], own_words).to(exact)
        grad_logits = (logits - normalizer[chunk, None]).exp_()
        if smoothing:
            grad_logits -= smoothing / num_valid
        grad_logits.scatter_add_(1, local[chunk, None], share[chunk, None])
        grad_logits = grad_logits.mul_(upstream[chunk, None]).to(hidden.dtype)
        grad_hidden[chunk] = grad_logits @ own_words
        grad_weight[:valid] += grad_logits.t() @ hidden[chunk]
    return grad_hidden, grad_weight.to(weight.dtype)

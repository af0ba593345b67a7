"""The loss over a vocabulary that is divided over the ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from glm_kernels.loss.reference import linear_cross_entropy_reference
from megatron_glm.parallel.collectives import to_shards
from megatron_glm.parallel.loss import parallel_linear_cross_entropy
from megatron_glm.training.processes import distributed_processes

TOKENS, ROWS, VALID, HIDDEN = 11, 64, 45, 6  # of four ranks, the last one has padding alone


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64)
    weight = torch.randn(ROWS, HIDDEN, generator=generator, dtype=torch.float64)
    weight[VALID:] = 1e3  # would be seen
    targets = torch.randint(0, VALID, (TOKENS,), generator=generator)
    return hidden, weight, targets, torch.linspace(-1, 2, TOKENS, dtype=torch.float64)


def reference(smoothing: float) -> list:
    """Loss, nll, gradients of hidden states and table, from the full logits."""
    hidden, weight, targets, upstream = inputs()
    hidden.requires_grad_()
    weight.requires_grad_()
    loss = linear_cross_entropy_reference(hidden, weight, targets, num_valid=VALID, label_smoothing=smoothing)
    nll = linear_cross_entropy_reference(hidden, weight, targets, num_valid=VALID)
    return [x.detach().numpy() for x in (loss, nll, *torch.autograd.grad(loss, (hidden, weight), upstream))]


def sharded(smoothing: float) -> list:
    """The same on one of the ranks, with its rows of the table."""
    with distributed_processes(threads=1) as ranks:
        hidden, weight, targets, upstream = inputs()
        weight = weight.chunk(ranks.size)[ranks.rank].clone().requires_grad_()
        hidden.requires_grad_()
        loss, nll = parallel_linear_cross_entropy(
            to_shards(hidden, dist.group.WORLD),
            weight,
            targets,
            num_valid=VALID,
            label_smoothing=smoothing,
            group=dist.group.WORLD,
        )
        assert not nll.requires_grad
        return [x.detach().numpy() for x in (loss, nll, *torch.autograd.grad(loss, (hidden, weight), upstream))]


def of_missing_words() -> list:
    """The loss on one of the ranks where some targets are words that there are not, one of them in the padding."""
    with distributed_processes(threads=1):
        hidden, weight, targets, _ = inputs()
        targets[[1, 4, 8]] = torch.tensor([-1, VALID, 10**9])
        weight = weight.chunk(dist.get_world_size())[dist.get_rank()]
        options = {"num_valid": VALID, "label_smoothing": 0.1, "group": dist.group.WORLD}
        return [x.numpy() for x in parallel_linear_cross_entropy(hidden, weight, targets, **options)]

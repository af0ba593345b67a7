"""Communication as a part of the computation: each function has the backward pass that belongs to it.

A value is *whole* if every rank of the group has the same, *partial* if the ranks' values sum to it, and
*spread* if each rank has an equal share of its rows. The gradient of a whole value that ranks use for
different ends is partial, and the other way round; the pairs below follow from that.

| function | value | its gradient |
|---|---|---|
| `to_shards` | whole → whole, used by shards | all-reduce |
| `bundle_to_shards` | the same for several values | one all-reduce |
| `from_shards` | partial → whole: all-reduce | as it is |
| `gather_rows` | spread → whole, used by shards: all-gather | reduce-scatter |
| `scatter_rows` | partial → spread: reduce-scatter | all-gather |
| `collect_rows` | spread → whole, used alike by all: all-gather | this rank's rows of it |

Source: Megatron-LM (arXiv 1909.08053, section 3) and its sequence parallelism (arXiv 2205.05198, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


def to_shards(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """A whole value that each rank uses with its own shard of the weights; its gradient is summed."""
    return _ToShards.apply(x, group)


def bundle_to_shards(values: Sequence[Tensor], group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """`to_shards` of several small values of one precision, whose gradients are summed by one message."""
    return _BundleToShards.apply(group, *values)


def from_shards(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of the ranks' partial values, on all of them."""
    return _FromShards.apply(x, group)


def gather_rows(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """All ranks' rows, [n, …] -> [size · n, …], used by each with its own shard; the gradient is summed and spread."""
    return _GatherRows.apply(x, group)


def scatter_rows(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """This rank's rows of the sum of the ranks' partial values: [size · n, …] -> [n, …]."""
    return _ScatterRows.apply(x, group)


def collect_rows(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """All ranks' rows, [n, …] -> [size · n, …], for a computation that all ranks do alike."""
    return _CollectRows.apply(x, group)


class _ToShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return _all_reduce(grad, ctx.group), None


class _BundleToShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group: dist.ProcessGroup, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(total, group=ctx.group)
        parts = total.split([grad.numel() for grad in grads])
        return None, *(part.view(grad.shape) for part, grad in zip(parts, grads, strict=True))


class _FromShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _all_reduce(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_gather(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter(grad, ctx.group), None


class _ScatterRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _reduce_scatter(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return _all_gather(grad, ctx.group), None


class _CollectRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.rows = group, x.shape[0]
        return _all_gather(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        start = dist.get_rank(ctx.group) * ctx.rows
        return grad[start : start + ctx.rows].contiguous(), None


def _all_reduce(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)  # the caller's tensor may be needed as it was
    dist.all_reduce(total, group=group)
    return total


def _all_gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    size = dist.get_world_size(group)
    whole = x.new_empty(size * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
    return whole


def _reduce_scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    size = dist.get_world_size(group)
    rows, rest = divmod(x.shape[0], size)
    assert not rest, f"{x.shape[0]} rows cannot be spread over {size} ranks"
    share = x.new_empty(rows, *x.shape[1:])
    dist.reduce_scatter_tensor(share, x.contiguous(), group=group)
    return share

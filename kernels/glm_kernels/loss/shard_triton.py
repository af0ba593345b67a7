"""What one shard of the vocabulary adds to the loss and to its gradients, with our kernels.

The matrix products are the library's, a chunk of tokens at a time into one buffer; the kernels read the logits once
per pass and leave their gradient in their place.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from glm_kernels.loss.tiles import TILES
from glm_kernels.operators import kernel_operator
from glm_kernels.tiles import architecture, find_tile

_CHUNK_LOGITS = 1 << 27  # 256 MB of bf16: 2,624 tokens at 50,304 ids, where the products are at their full rate
_ALIGNMENT = 128  # columns: a product with an odd number of them misses the fast kernels


_INPUTS = {"hidden": "float [N, H]", "weight": "hidden [V, H]", "local_targets": "int64 [N]"}


@kernel_operator("loss_shard_statistics", **_INPUTS)
def statistics(hidden: Tensor, weight: Tensor, local_targets: Tensor, valid: int) -> Tensor:
    """Log-sum-exp, target's logit and sum of the logits of each token. See shard.shard_statistics."""
    from glm_kernels.loss.triton_kernels import statistics_kernel

    _check_valid(weight, valid)
    found = hidden.new_zeros(3, len(hidden), dtype=torch.float32)
    found[0] = -torch.inf
    if valid == 0:  # no kernel is launched: an id behind the words is to be seen all the same
        found[1].masked_fill_(local_targets >= 0, torch.nan)
    local_targets = local_targets.contiguous()
    tile = find_tile(TILES, "loss_statistics", architecture(hidden.device))
    for chunk, logits in _chunks_of_logits(hidden, weight, valid):
        statistics_kernel[(len(logits),)](
            logits,
            local_targets[chunk],
            found[0, chunk],
            found[1, chunk],
            found[2, chunk],
            logits.shape[1],
            valid,
            **tile.launch(),
        )
    return found


@statistics.register_fake
def _(hidden, weight, local_targets, valid):
    return hidden.new_empty(3, hidden.shape[0], dtype=torch.float32)


@kernel_operator("loss_shard_gradients", **_INPUTS, upstream="float32 [N]", normalizer="float32 [N]")
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
    from glm_kernels.loss.triton_kernels import gradient_kernel

    _check_valid(weight, valid)
    tile = find_tile(TILES, "loss_gradient", architecture(hidden.device))
    upstream, local_targets, normalizer = (x.contiguous() for x in (upstream, local_targets, normalizer))
    width, size = _width(weight, valid), _chunk_size(weight, valid)
    one_chunk = len(hidden) <= size
    grad_hidden = hidden.new_zeros(hidden.shape)
    grad_weight = weight.new_zeros(weight.shape, dtype=weight.dtype if one_chunk else torch.float32)
    for chunk, logits in _chunks_of_logits(hidden, weight, valid):
        gradient_kernel[(len(logits), -(-width // tile.blocks["BLOCK_V"]))](
            logits,
            local_targets[chunk],
            normalizer[chunk],
            upstream[chunk],
            width,
            valid,
            smoothing / num_valid,
            1.0 - smoothing,
            **tile.launch(),
        )
        torch.mm(logits, weight[:width], out=grad_hidden[chunk])
        if one_chunk:
            torch.mm(logits.t(), hidden, out=grad_weight[:width])
        else:
            grad_weight[:width] += logits.t() @ hidden[chunk]
    return grad_hidden, grad_weight.to(weight.dtype)


@gradients.register_fake
def _(upstream, hidden, weight, local_targets, normalizer, valid, smoothing, num_valid):
    return hidden.new_empty(hidden.shape), weight.new_empty(weight.shape)


def _check_valid(weight: Tensor, valid: int) -> None:
    if not 0 <= valid <= len(weight):
        raise ValueError(f"valid: {valid} words of a table of {len(weight)}; it has to be in 0..{len(weight)}")


def _chunks_of_logits(hidden: Tensor, weight: Tensor, valid: int) -> Iterator[tuple[slice, Tensor]]:
    """The chunks of a row and their logits [n, width], each in the memory of the one before."""
    width, size = _width(weight, valid), _chunk_size(weight, valid)
    if valid == 0 or len(hidden) == 0:  # a shard may hold nothing but padding
        return
    buffer = hidden.new_empty(min(size, len(hidden)), width)
    for start in range(0, len(hidden), size):
        chunk = slice(start, min(start + size, len(hidden)))
        logits = buffer[: chunk.stop - start]
        torch.mm(hidden[chunk], weight[:width].t(), out=logits)
        yield chunk, logits


def _chunk_size(weight: Tensor, valid: int) -> int:
    size = _CHUNK_LOGITS // max(1, _width(weight, valid))
    return max(1, size - size % 64 if size > 64 else size)


def _width(weight: Tensor, valid: int) -> int:
    """Columns of the matrix of logits: those that count, and some of the padding after them."""
    return min(len(weight), -(-valid // _ALIGNMENT) * _ALIGNMENT)

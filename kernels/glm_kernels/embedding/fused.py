"""The embedding sum with dropout by our kernels: one registered operation.

Saved for the backward pass are the ids and the dropout's keys, nothing of the row's width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glm_kernels.dropout.fused import fused_dropout_add
from glm_kernels.dropout.keys import drop_threshold
from glm_kernels.dropout.masks import keep_scale
from glm_kernels.embedding.gradient import table_gradient
from glm_kernels.embedding.tiles import TILES
from glm_kernels.operators import kernel_operator
from glm_kernels.strides import with_dense_features
from glm_kernels.tiles import architecture, find_tile


@kernel_operator(
    "embedding",
    base="float [T, H]",
    word="float [V, H]",
    position="float [P, H]",
    block_position="float [B, H]",
    **dict.fromkeys(("input_ids", "position_ids", "block_position_ids", "token_key"), "int64 [T]"),
)
def fused_embedding(
    base: Tensor | None,
    word: Tensor | None,
    position: Tensor | None,
    block_position: Tensor | None,
    input_ids: Tensor,
    position_ids: Tensor,
    block_position_ids: Tensor,
    token_key: Tensor | None,
    first_word: int,
    sharded: bool,
    philox_key: int,
    probability: float,
    deterministic: bool,
) -> Tensor:
    """dropout(base + word + position + block position), of those that are not None: [T, H] in their widest type.

    Args:
        base: [T, H].
        word: [V, H], the rows of the ids from first_word on; sharded: ids without a row add 0, and NaN otherwise.
        position, block_position: [P + 1, H].
        input_ids, position_ids, block_position_ids: int64 [T].
        token_key: int64 [T] of RowKeys; None: no dropout.
        deterministic: of the gradients of the tables.
    """
    from glm_kernels.embedding.triton_kernels import embedding_kernel

    terms = [None if term is None else with_dense_features(term) for term in (base, word, position, block_position)]
    base, word, position, block_position = terms
    ids = (x.contiguous() for x in (input_ids, position_ids, block_position_ids))
    token_key = None if token_key is None else token_key.contiguous()
    tokens, width = len(input_ids), next(term.shape[1] for term in terms if term is not None)
    output = input_ids.new_empty(tokens, width, dtype=_result_type(terms))
    tile = find_tile(TILES, "embedding_forward", architecture(output.device))
    if output.numel():
        embedding_kernel[(-(-tokens // tile.blocks["BLOCK_T"]), -(-width // tile.blocks["BLOCK_H"]))](
            base,
            *ids,
            word,
            position,
            block_position,
            output,
            token_key,
            *(0 if term is None else term.stride(0) for term in terms),
            tokens,
            width,
            first_word,
            *(0 if table is None else len(table) for table in terms[1:]),
            0.0 if sharded else float("nan"),
            philox_key,
            drop_threshold(probability),
            keep_scale(probability),
            **tile.launch(),
        )
    return output


@fused_embedding.register_fake
def _(base, word, position, block_position, input_ids, *rest):
    terms = [term for term in (base, word, position, block_position) if term is not None]
    return input_ids.new_empty(input_ids.shape[0], terms[0].shape[1], dtype=_result_type(terms))


def _save(ctx, inputs, output):
    terms, ids, token_key, numbers = inputs[:4], inputs[4:7], inputs[7], inputs[8:]
    ctx.types = [None if term is None else term.dtype for term in terms]
    ctx.rows = [None if term is None else term.shape[0] for term in terms]
    ctx.first_word, _, ctx.philox_key, ctx.probability, ctx.deterministic = numbers
    ctx.save_for_backward(*ids, token_key)


def _backward(ctx, upstream):
    *ids, token_key = ctx.saved_tensors
    gradients = []
    for i in range(4):
        if not ctx.needs_input_grad[i]:
            gradients.append(None)
        elif i == 0:
            gradients.append(_dropped(upstream, token_key, ctx).to(ctx.types[0]))
        else:
            gradients.append(
                table_gradient(
                    upstream,
                    ids[i - 1],
                    token_key,
                    ctx.first_word if i == 1 else 0,
                    ctx.rows[i],
                    ctx.philox_key,
                    ctx.probability,
                    ctx.types[i],
                    ctx.deterministic,
                )
            )
    return *gradients, *(None for _ in range(9))


fused_embedding.register_autograd(_backward, setup_context=_save)


def _dropped(upstream: Tensor, token_key: Tensor | None, ctx) -> Tensor:
    if token_key is None:
        return upstream
    return fused_dropout_add(upstream, None, token_key, None, ctx.philox_key, ctx.probability)


def _result_type(terms) -> torch.dtype:
    first, *others = (term.dtype for term in terms if term is not None)
    for other in others:
        first = torch.promote_types(first, other)
    return first

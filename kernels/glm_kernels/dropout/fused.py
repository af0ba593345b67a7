"""Keyed dropout with the residual sum by our kernel: a registered operation, and its gradient by the same kernel.

Nothing of the row's size is saved for the backward pass: it draws the mask anew from the keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glm_kernels.dropout.keys import drop_threshold
from glm_kernels.dropout.masks import keep_scale
from glm_kernels.dropout.tiles import TILES
from glm_kernels.operators import kernel_operator
from glm_kernels.strides import with_dense_features
from glm_kernels.tiles import architecture, find_tile


@kernel_operator("dropout_add", x="float [N, H]", residual="float [N, H]", token_key="int64 [T]", places="int64 [N]")
def fused_dropout_add(
    x: Tensor, residual: Tensor | None, token_key: Tensor, places: Tensor | None, philox_key: int, probability: float
) -> Tensor:
    """residual + dropout(x), or dropout(x): [N, H] -> [N, H] in the wider type of the two.

    Args:
        token_key: int64 [T], of RowKeys.
        places: int64 [N], where the tokens stand in the row; None: N is T.
        philox_key: of DropoutKey.
    """
    from glm_kernels.dropout.triton_kernels import dropout_add_kernel

    tokens, width = x.shape
    if places is None and len(token_key) != tokens:
        raise ValueError(f"dropout of {tokens} tokens with the keys of {len(token_key)}; give their places")
    output = x.new_empty(x.shape, dtype=_result_type(x, residual))
    x = with_dense_features(x)
    residual = None if residual is None else with_dense_features(residual)
    token_key, places = token_key.contiguous(), None if places is None else places.contiguous()
    tile = find_tile(TILES, "dropout_add", architecture(x.device))
    grid = (-(-tokens // tile.blocks["BLOCK_T"]), -(-width // tile.blocks["BLOCK_H"]))
    if x.numel():
        dropout_add_kernel[grid](
            x,
            residual,
            output,
            token_key,
            places,
            x.stride(0),
            0 if residual is None else residual.stride(0),
            tokens,
            len(token_key),
            width,
            philox_key,
            drop_threshold(probability),
            keep_scale(probability),
            **tile.launch(),
        )
    return output


@fused_dropout_add.register_fake
def _(x, residual, token_key, places, philox_key, probability):
    return x.new_empty(x.shape, dtype=_result_type(x, residual))


def _save(ctx, inputs, output):
    x, residual, token_key, places, ctx.philox_key, ctx.probability = inputs
    ctx.types = x.dtype, None if residual is None else residual.dtype
    ctx.save_for_backward(token_key, places)


def _backward(ctx, upstream):
    token_key, places = ctx.saved_tensors
    of_x, of_residual = ctx.types
    grad_x = grad_residual = None
    if ctx.needs_input_grad[0]:
        grad_x = fused_dropout_add(upstream, None, token_key, places, ctx.philox_key, ctx.probability).to(of_x)
    if ctx.needs_input_grad[1]:
        grad_residual = upstream.to(of_residual)
    return grad_x, grad_residual, None, None, None, None


fused_dropout_add.register_autograd(_backward, setup_context=_save)


def _result_type(x: Tensor, residual: Tensor | None) -> torch.dtype:
    return x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)

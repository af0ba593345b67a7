"""Interval attention by our kernels as operators of torch: for autograd, torch.compile and the counting of FLOPs.

    glm_kernels::interval_attention            query, key, value, intervals → output, log-sum-exp
    glm_kernels::interval_attention_backward   and what the first one saved → their gradients

The seed of dropout and what else keys it are arguments, so both draw the same mask, and so does a forward pass that
activation checkpointing repeats. triton is imported when an operator first runs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from glm_kernels.dropout.keys import DropoutKey
from glm_kernels.operators import kernel_operator

_INPUTS = {
    "query": "float [T, heads, d]",
    **dict.fromkeys(("key", "value"), "query [T, heads, d]"),
    **dict.fromkeys(("key_start", "key_end", "query_start", "query_end", "token"), "int32 [T]"),
    "token_key": "int64 [T]",
}
_RESULTS = {
    **dict.fromkeys(("output", "grad_output"), "query [T, heads, d]"),
    **dict.fromkeys(("log_sum_exp", "grad_log_sum_exp"), "float32 [heads, T]"),
}


@kernel_operator("interval_attention", **_INPUTS)
def interval_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_start: Tensor,
    key_end: Tensor,
    query_start: Tensor,
    query_end: Tensor,
    token_key: Tensor | None,
    token: Tensor | None,
    dropout: float,
    seed: int,
    layer: int,
    site: int,
    first_head: int,
    long_segments: bool,
) -> tuple[Tensor, Tensor]:
    """Each token's attention over the keys it sees, and its log-sum-exp.

    Args:
        query, key, value: [T, heads, d], d <= 128; any strides, such as views of one fused projection.
        key_start, key_end, query_start, query_end: int32 [T], of `Visibility`.
        token_key, token: int64 and int32 [T] of `RowKeys`, if dropout > 0.
        seed, layer, site: of `DropoutKey`. first_head: of these heads among the layer's.
        long_segments: `Visibility.has_long_segments`, which chooses the tiles.

    Returns:
        [T, heads, d] and fp32 [heads, T] in nats; 0 and +inf for a token that sees nothing.
    """
    from glm_kernels.attention.launch import Intervals, launch_forward

    intervals = Intervals(*(bound.contiguous() for bound in (key_start, key_end, query_start, query_end)))
    dropping = _dropping(token_key, token, dropout, seed, layer, site, first_head)
    return launch_forward(query, key, value, intervals, dropping, long_segments=long_segments)


@kernel_operator("interval_attention_backward", **_INPUTS, **_RESULTS)
def interval_attention_backward(
    grad_output: Tensor,
    grad_log_sum_exp: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_sum_exp: Tensor,
    key_start: Tensor,
    key_end: Tensor,
    query_start: Tensor,
    query_end: Tensor,
    token_key: Tensor | None,
    token: Tensor | None,
    dropout: float,
    seed: int,
    layer: int,
    site: int,
    first_head: int,
    long_segments: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value, [T, heads, d] each; the same bits every time."""
    from glm_kernels.attention.launch import Intervals, launch_backward

    intervals = Intervals(*(bound.contiguous() for bound in (key_start, key_end, query_start, query_end)))
    dropping = _dropping(token_key, token, dropout, seed, layer, site, first_head)
    saved = (query, key, value, output, log_sum_exp)
    return launch_backward(grad_output, *saved, grad_log_sum_exp, intervals, dropping, long_segments=long_segments)


@interval_attention.register_fake
def _(query: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    T, heads, head_dim = query.shape
    return query.new_empty(T, heads, head_dim), query.new_empty(heads, T, dtype=torch.float32)


@interval_attention_backward.register_fake
def _(grad_output: Tensor, grad_log_sum_exp: Tensor | None, query: Tensor, *_: object) -> tuple[Tensor, ...]:
    return tuple(query.new_empty(query.shape) for _ in range(3))


def _save(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    query, key, value, *intervals_and_keys = inputs[:9]
    ctx.save_for_backward(query, key, value, *output, *intervals_and_keys)
    ctx.numbers = inputs[9:]
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_output: Tensor | None, grad_log_sum_exp: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    if grad_output is None:
        grad_output = torch.zeros_like(saved[3])
    gradients = interval_attention_backward(grad_output, grad_log_sum_exp, *saved, *ctx.numbers)
    return *gradients, *[None] * 12


interval_attention.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.glm_kernels.interval_attention, get_raw=True)
def attention_flops(query: Tensor, key: Tensor, value: Tensor, key_start: Tensor, key_end: Tensor, *_, **__) -> int:
    """Two products over the visible pairs: exact, where SDPA's formula counts what a mask hides as well."""
    return 4 * _visible_pairs(key_start, key_end) * query.shape[1] * query.shape[2]


@register_flop_formula(torch.ops.glm_kernels.interval_attention_backward, get_raw=True)
def attention_backward_flops(
    grad_output: Tensor,
    grad_log_sum_exp: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_sum_exp: Tensor,
    key_start: Tensor,
    key_end: Tensor,
    *_,
    **__,
) -> int:
    """Five products, the scores' recomputation among them, as torch counts SDPA's; the kernels do seven."""
    return 10 * _visible_pairs(key_start, key_end) * query.shape[1] * query.shape[2]


def _visible_pairs(key_start: Tensor, key_end: Tensor) -> int:
    return int((key_end.long() - key_start.long()).sum())


def _dropping(
    token_key: Tensor | None, token: Tensor | None, dropout: float, seed: int, layer: int, site: int, first_head: int
):
    from glm_kernels.attention.launch import Dropping

    if not dropout:
        return None
    key = DropoutKey(seed, layer, site)
    return Dropping(dropout, token_key.contiguous(), token.contiguous(), key, first_head)

"""The gradients of keys and values: a tile of keys walks over the queries that see it.

No program adds to what another one wrote, so the gradients are the same bits every time. The weights, and the mask of
dropout, are computed anew here and for the gradients of the queries: seven products of tiles instead of five.

Source: FlashAttention-2 (arXiv 2307.08691), algorithm 2, its two sums in a kernel each.
"""

import triton
import triton.language as tl

from glm_kernels.attention.triton_tiles import (
    add_product,
    border_tile,
    column_tiles,
    load_pair,
    product_over_features,
    row_intervals,
    store_pair,
)
from glm_kernels.dropout.philox import counter_words, draw, kept
from glm_kernels.interpreting import operand

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["philox_key", "threshold", "first_head"])
def key_value_kernel(
    query,
    key,
    value,
    grad_output,
    log_sum_exp,
    delta,
    grad_key,
    grad_value,
    query_start,
    query_end,
    token_key,
    token,
    counts,
    T,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    grad_stride,
    grad_head_stride,
    output_stride,
    scale,
    philox_key,
    threshold,
    keep_scale,
    first_head,
    HEAD_DIM: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    DROPOUT: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Program (i, head): the gradients of the keys and values from i · BLOCK_N on, over the queries that see them.

    Tiles of scores stand transposed, [BLOCK_N, BLOCK_M]. scale is 1 / sqrt(d); delta comes divided by keep_scale, which
    then is a factor of the whole sum.
    """
    first_row, head = tl.program_id(0) * BLOCK_N, tl.program_id(1).to(tl.int64)
    row = first_row + tl.arange(0, BLOCK_N)
    valid = row < T
    start, end = row_intervals(query_start, query_end, first_row, T, BLOCK_N)
    origin, count, first_full, end_full = column_tiles(start, end, BLOCK_M)

    offset = first_row.to(tl.int64)
    key += offset * key_stride + head * key_head_stride
    value += offset * value_stride + head * value_head_stride
    k_first, k_second = load_pair(key, key_stride, valid, FIRST, SECOND, HEAD_DIM, True)
    v_first, v_second = load_pair(value, value_stride, valid, FIRST, SECOND, HEAD_DIM, True)
    place = row
    if DROPOUT:
        place = tl.load(token + row, mask=valid, other=0)

    dk_first, dv_first = tl.zeros([BLOCK_N, FIRST], tl.float32), tl.zeros([BLOCK_N, FIRST], tl.float32)
    dk_second, dv_second = dk_first, dv_first
    if SECOND:
        dk_second, dv_second = tl.zeros([BLOCK_N, SECOND], tl.float32), tl.zeros([BLOCK_N, SECOND], tl.float32)

    query += head * query_head_stride
    grad_output += head * grad_head_stride
    log_sum_exp += head * T
    delta += head * T
    num_full, num_border = 0, 0
    for tile in range(first_full, end_full):
        dk_first, dk_second, dv_first, dv_second = _add_key_value(
            dk_first, dk_second, dv_first, dv_second, k_first, k_second, v_first, v_second,
            query, grad_output, log_sum_exp, delta, query_stride, grad_stride, origin + tile * BLOCK_M, start, end, T,
            scale, token_key, place, philox_key, threshold, first_head + head,
            HEAD_DIM, FIRST, SECOND, DROPOUT, BLOCK_M, False,
        )  # fmt: skip
        num_full += 1
    for number in range(0, count - (end_full - first_full)):
        tile = border_tile(number, first_full, end_full)
        dk_first, dk_second, dv_first, dv_second = _add_key_value(
            dk_first, dk_second, dv_first, dv_second, k_first, k_second, v_first, v_second,
            query, grad_output, log_sum_exp, delta, query_stride, grad_stride, origin + tile * BLOCK_M, start, end, T,
            scale, token_key, place, philox_key, threshold, first_head + head,
            HEAD_DIM, FIRST, SECOND, DROPOUT, BLOCK_M, True,
        )  # fmt: skip
        num_border += 1

    seen = (start < end)[:, None]
    if DROPOUT:
        dv_first, dv_second = dv_first * keep_scale, dv_second * keep_scale
        scale *= keep_scale
    dk_first, dk_second = tl.where(seen, dk_first * scale, 0.0), tl.where(seen, dk_second * scale, 0.0)
    dv_first, dv_second = tl.where(seen, dv_first, 0.0), tl.where(seen, dv_second, 0.0)
    place_of_row = offset * output_stride + head * HEAD_DIM
    store_pair(grad_key + place_of_row, output_stride, valid, dk_first, dk_second, FIRST, SECOND, HEAD_DIM)
    store_pair(grad_value + place_of_row, output_stride, valid, dv_first, dv_second, FIRST, SECOND, HEAD_DIM)
    if COUNT:
        place_of_count = counts + 2 * (head * tl.num_programs(0) + tl.program_id(0))
        tl.store(place_of_count, num_full)
        tl.store(place_of_count + 1, num_border)


@triton.jit
def _add_key_value(
    dk_first,
    dk_second,
    dv_first,
    dv_second,
    k_first,
    k_second,
    v_first,
    v_second,
    query,
    grad_output,
    log_sum_exp,
    delta,
    query_stride,
    grad_stride,
    first_column,
    start,
    end,
    T,
    scale,
    token_key,
    place,
    philox_key,
    threshold,
    head,
    HEAD_DIM: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    DROPOUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BORDER: tl.constexpr,
):
    """Add what the queries from first_column on contribute, masked if BORDER."""
    column = first_column + tl.arange(0, BLOCK_M)
    inside = column < T
    offset = first_column.to(tl.int64)
    q_first, q_second = load_pair(query + offset * query_stride, query_stride, inside, FIRST, SECOND, HEAD_DIM, BORDER)
    scores = product_over_features(k_first, k_second, q_first, q_second, SECOND)
    logarithm = tl.load(log_sum_exp + column, mask=inside, other=float("inf"))
    weights = tl.exp2(scores * (scale * _LOG2_E) - (logarithm * _LOG2_E)[None, :])
    if BORDER:
        visible = (start[:, None] <= column[None, :]) & (column[None, :] < end[:, None])
        weights = tl.where(visible, weights, 0.0)
    kept_weights = weights
    if DROPOUT:
        low, high = counter_words(tl.load(token_key + column, mask=inside, other=0))
        word, _, _, _ = draw(philox_key, low[None, :], high[None, :], place[:, None], head)
        keep = kept(word, threshold)
        kept_weights = tl.where(keep, weights, 0.0)
    g_first, g_second = load_pair(
        grad_output + offset * grad_stride, grad_stride, inside, FIRST, SECOND, HEAD_DIM, BORDER
    )
    kept_weights = operand(kept_weights, grad_output.dtype.element_ty)
    dv_first, dv_second = add_product(dv_first, dv_second, kept_weights, g_first, g_second, SECOND)
    grad_weights = product_over_features(v_first, v_second, g_first, g_second, SECOND)
    if DROPOUT:
        grad_weights = tl.where(keep, grad_weights, 0.0)
    row_delta = tl.load(delta + column, mask=inside, other=0.0)
    grad_scores = operand(weights * (grad_weights - row_delta[None, :]), query.dtype.element_ty)
    dk_first, dk_second = add_product(dk_first, dk_second, grad_scores, q_first, q_second, SECOND)
    return dk_first, dk_second, dv_first, dv_second

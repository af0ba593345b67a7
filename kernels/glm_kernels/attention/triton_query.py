"""The gradients of queries: a tile of queries walks over the keys that it sees, as in the forward pass.

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
def query_kernel(
    query,
    key,
    value,
    grad_output,
    log_sum_exp,
    delta,
    grad_query,
    key_start,
    key_end,
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
    """Program (i, head): the gradients of the queries from i · BLOCK_M on.

    scale is 1 / sqrt(d); delta comes divided by keep_scale, which then is a factor of the whole sum.
    """
    first_row, head = tl.program_id(0) * BLOCK_M, tl.program_id(1).to(tl.int64)
    row = first_row + tl.arange(0, BLOCK_M)
    valid = row < T
    start, end = row_intervals(key_start, key_end, first_row, T, BLOCK_M)
    origin, count, first_full, end_full = column_tiles(start, end, BLOCK_N)

    offset = first_row.to(tl.int64)
    query += offset * query_stride + head * query_head_stride
    grad_output += offset * grad_stride + head * grad_head_stride
    q_first, q_second = load_pair(query, query_stride, valid, FIRST, SECOND, HEAD_DIM, True)
    g_first, g_second = load_pair(grad_output, grad_stride, valid, FIRST, SECOND, HEAD_DIM, True)
    place_of_row = head * T + row
    logarithm = tl.load(log_sum_exp + place_of_row, mask=valid, other=float("inf")) * _LOG2_E
    row_delta = tl.load(delta + place_of_row, mask=valid, other=0.0)
    low, high = row, row
    if DROPOUT:
        low, high = counter_words(tl.load(token_key + row, mask=valid, other=0))

    dq_first = tl.zeros([BLOCK_M, FIRST], tl.float32)
    dq_second = dq_first
    if SECOND:
        dq_second = tl.zeros([BLOCK_M, SECOND], tl.float32)

    key += head * key_head_stride
    value += head * value_head_stride
    num_full, num_border = 0, 0
    for tile in range(first_full, end_full):
        dq_first, dq_second = _add_query(
            dq_first, dq_second, q_first, q_second, g_first, g_second, logarithm, row_delta,
            key, value, key_stride, value_stride, origin + tile * BLOCK_N, start, end, T,
            scale, token, low, high, philox_key, threshold, first_head + head,
            HEAD_DIM, FIRST, SECOND, DROPOUT, BLOCK_N, False,
        )  # fmt: skip
        num_full += 1
    for number in range(0, count - (end_full - first_full)):
        tile = border_tile(number, first_full, end_full)
        dq_first, dq_second = _add_query(
            dq_first, dq_second, q_first, q_second, g_first, g_second, logarithm, row_delta,
            key, value, key_stride, value_stride, origin + tile * BLOCK_N, start, end, T,
            scale, token, low, high, philox_key, threshold, first_head + head,
            HEAD_DIM, FIRST, SECOND, DROPOUT, BLOCK_N, True,
        )  # fmt: skip
        num_border += 1

    grad_query += offset * output_stride + head * HEAD_DIM
    if DROPOUT:
        scale *= keep_scale
    dq_first, dq_second = dq_first * scale, dq_second * scale
    store_pair(grad_query, output_stride, valid, dq_first, dq_second, FIRST, SECOND, HEAD_DIM)
    if COUNT:
        place_of_count = counts + 2 * (head * tl.num_programs(0) + tl.program_id(0))
        tl.store(place_of_count, num_full)
        tl.store(place_of_count + 1, num_border)


@triton.jit
def _add_query(
    dq_first,
    dq_second,
    q_first,
    q_second,
    g_first,
    g_second,
    logarithm,
    row_delta,
    key,
    value,
    key_stride,
    value_stride,
    first_column,
    start,
    end,
    T,
    scale,
    token,
    low,
    high,
    philox_key,
    threshold,
    head,
    HEAD_DIM: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    DROPOUT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BORDER: tl.constexpr,
):
    """Add what the keys from first_column on contribute, masked if BORDER."""
    column = first_column + tl.arange(0, BLOCK_N)
    inside = column < T
    offset = first_column.to(tl.int64)
    k_first, k_second = load_pair(key + offset * key_stride, key_stride, inside, FIRST, SECOND, HEAD_DIM, BORDER)
    v_first, v_second = load_pair(value + offset * value_stride, value_stride, inside, FIRST, SECOND, HEAD_DIM, BORDER)
    scores = product_over_features(q_first, q_second, k_first, k_second, SECOND)
    weights = tl.exp2(scores * (scale * _LOG2_E) - logarithm[:, None])
    if BORDER:
        visible = (start[:, None] <= column[None, :]) & (column[None, :] < end[:, None])
        weights = tl.where(visible, weights, 0.0)
    grad_weights = product_over_features(g_first, g_second, v_first, v_second, SECOND)
    if DROPOUT:
        place = tl.load(token + column, mask=inside, other=0)
        word, _, _, _ = draw(philox_key, low[:, None], high[:, None], place[None, :], head)
        grad_weights = tl.where(kept(word, threshold), grad_weights, 0.0)
    grad_scores = operand(weights * (grad_weights - row_delta[:, None]), key.dtype.element_ty)
    return add_product(dq_first, dq_second, grad_scores, k_first, k_second, SECOND)

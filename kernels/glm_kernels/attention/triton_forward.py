"""The forward kernel of interval attention: an online softmax over the tiles that a tile of queries sees.

Source: FlashAttention-2 (arXiv 2307.08691), algorithm 1; dropout as in FlashAttention (arXiv 2205.14135), B.3.
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

_LOWEST = tl.constexpr(-1.0e30)  # a maximum to start with: finite, so that a row without visible keys makes no NaN
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=["philox_key", "threshold", "first_head"])
def forward_kernel(
    query,
    key,
    value,
    output,
    log_sum_exp,
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
    """Program (i, head): the queries from i · BLOCK_M on. scale is log2(e) / sqrt(d).

    [T, heads, d] -> output [T, heads, d], log_sum_exp fp32 [heads, T]: 0 and +inf where a query sees nothing.
    """
    first_row, head = tl.program_id(0) * BLOCK_M, tl.program_id(1).to(tl.int64)
    row = first_row + tl.arange(0, BLOCK_M)
    valid = row < T
    start, end = row_intervals(key_start, key_end, first_row, T, BLOCK_M)
    origin, count, first_full, end_full = column_tiles(start, end, BLOCK_N)

    query += first_row.to(tl.int64) * query_stride + head * query_head_stride
    q_first, q_second = load_pair(query, query_stride, valid, FIRST, SECOND, HEAD_DIM, True)
    low, high = row, row
    if DROPOUT:
        low, high = counter_words(tl.load(token_key + row, mask=valid, other=0))

    maximum = tl.full([BLOCK_M], _LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sum_first = tl.zeros([BLOCK_M, FIRST], tl.float32)
    sum_second = sum_first
    if SECOND:
        sum_second = tl.zeros([BLOCK_M, SECOND], tl.float32)

    key += head * key_head_stride
    value += head * value_head_stride
    num_full, num_border = 0, 0
    for tile in range(first_full, end_full):
        maximum, total, sum_first, sum_second = _attend(
            maximum, total, sum_first, sum_second, q_first, q_second, key, value, key_stride, value_stride,
            origin + tile * BLOCK_N, start, end, T, scale, token, low, high, philox_key, threshold, first_head + head,
            HEAD_DIM, FIRST, SECOND, DROPOUT, BLOCK_N, False,
        )  # fmt: skip
        num_full += 1
    for number in range(0, count - (end_full - first_full)):
        tile = border_tile(number, first_full, end_full)
        maximum, total, sum_first, sum_second = _attend(
            maximum, total, sum_first, sum_second, q_first, q_second, key, value, key_stride, value_stride,
            origin + tile * BLOCK_N, start, end, T, scale, token, low, high, philox_key, threshold, first_head + head,
            HEAD_DIM, FIRST, SECOND, DROPOUT, BLOCK_N, True,
        )  # fmt: skip
        num_border += 1

    sees = start < end
    total = tl.where(sees, total, 1.0)
    factor = tl.where(sees, 1.0 / total, 0.0)
    if DROPOUT:
        factor *= keep_scale
    output += first_row.to(tl.int64) * output_stride + head * HEAD_DIM
    sum_first, sum_second = sum_first * factor[:, None], sum_second * factor[:, None]
    store_pair(output, output_stride, valid, sum_first, sum_second, FIRST, SECOND, HEAD_DIM)
    logarithm = tl.where(sees, (maximum + tl.log2(total)) * _LN_2, float("inf"))
    tl.store(log_sum_exp + head * T + row, logarithm, mask=valid)
    if COUNT:
        place = counts + 2 * (head * tl.num_programs(0) + tl.program_id(0))
        tl.store(place, num_full)
        tl.store(place + 1, num_border)


@triton.jit
def _attend(
    maximum,
    total,
    sum_first,
    sum_second,
    q_first,
    q_second,
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
    """One step of the online softmax: the keys from first_column on, masked if BORDER."""
    column = first_column + tl.arange(0, BLOCK_N)
    inside = column < T
    offset = first_column.to(tl.int64)
    k_first, k_second = load_pair(key + offset * key_stride, key_stride, inside, FIRST, SECOND, HEAD_DIM, BORDER)
    scores = product_over_features(q_first, q_second, k_first, k_second, SECOND)
    if BORDER:
        visible = (start[:, None] <= column[None, :]) & (column[None, :] < end[:, None])
        scores = tl.where(visible, scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - new_maximum[:, None])
    rescale = tl.exp2(maximum - new_maximum)
    total = total * rescale + tl.sum(weights, axis=1)
    if DROPOUT:
        place = tl.load(token + column, mask=inside, other=0)
        word, _, _, _ = draw(philox_key, low[:, None], high[:, None], place[None, :], head)
        weights = tl.where(kept(word, threshold), weights, 0.0)
    sum_first = sum_first * rescale[:, None]
    if SECOND:
        sum_second = sum_second * rescale[:, None]
    v_first, v_second = load_pair(value + offset * value_stride, value_stride, inside, FIRST, SECOND, HEAD_DIM, BORDER)
    weights = operand(weights, value.dtype.element_ty)
    sum_first, sum_second = add_product(sum_first, sum_second, weights, v_first, v_second, SECOND)
    return new_maximum, total, sum_first, sum_second

"""What every row of the backward pass needs once: the sum over features of its output times its gradient.

It equals the sum over keys of weight times gradient of the weight, with dropout as without.

Source: FlashAttention-2 (arXiv 2307.08691), algorithm 2, line 4.
"""

import triton
import triton.language as tl

from glm_kernels.attention.triton_tiles import load_pair


@triton.jit
def delta_kernel(
    output,
    grad_output,
    delta,
    T,
    output_stride,
    grad_stride,
    grad_head_stride,
    factor,
    HEAD_DIM: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Program (i, head): delta = factor · Σ over features of output · grad_output.

    [T, heads, d] twice -> fp32 [heads, T].
    """
    first_row, head = tl.program_id(0) * BLOCK_M, tl.program_id(1).to(tl.int64)
    row = first_row + tl.arange(0, BLOCK_M)
    valid = row < T
    offset = first_row.to(tl.int64)
    output += offset * output_stride + head * HEAD_DIM
    grad_output += offset * grad_stride + head * grad_head_stride
    o_first, o_second = load_pair(output, output_stride, valid, FIRST, SECOND, HEAD_DIM, True)
    g_first, g_second = load_pair(grad_output, grad_stride, valid, FIRST, SECOND, HEAD_DIM, True)
    total = tl.sum(o_first.to(tl.float32) * g_first.to(tl.float32), axis=1)
    if SECOND:
        total += tl.sum(o_second.to(tl.float32) * g_second.to(tl.float32), axis=1)
    tl.store(delta + head * T + row, total * factor, mask=valid)

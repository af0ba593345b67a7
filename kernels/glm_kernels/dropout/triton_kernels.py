"""Dropout of hidden states with the residual sum, in one pass."""

import triton
import triton.language as tl

from glm_kernels.dropout.philox import counter_words, draw, kept
from glm_kernels.interpreting import loaded, stored


@triton.jit
def hidden_kept(token_key, first, philox_key, threshold, WIDTH: tl.constexpr):
    """Which of WIDTH features of each token are kept, from the feature `first` on, a multiple of 4.

    int64 [n] of RowKeys -> bool [n, WIDTH]. Philox gives four words at a time: the counter's third word is
    feature // 4, and feature % 4 chooses among them.
    """
    low, high = counter_words(token_key)
    quad = first // 4 + tl.arange(0, WIDTH // 4)
    a, b, c, d = draw(philox_key, low[:, None], high[:, None], quad[None, :], tl.zeros([1, 1], tl.uint32))
    # The last dimension of a join is its fastest: (a, b, c, d) of a quad come to stand side by side.
    pairs = tl.join(tl.join(a, c), tl.join(b, d))
    return kept(tl.reshape(pairs, (token_key.shape[0], WIDTH)), threshold)


@triton.jit(do_not_specialize=["tokens", "rows", "philox_key", "threshold"])
def dropout_add_kernel(
    x,  # [tokens, width]
    residual,  # [tokens, width] or None
    output,  # [tokens, width]
    token_key,  # int64 [rows], of the whole row
    places,  # int64 [tokens], where each stands in the row; None: in order
    x_stride,
    residual_stride,
    tokens,
    rows,
    width,
    philox_key,
    threshold,
    scale,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """output = residual + scale · kept · x, or without residual; program (i, j): a tile of tokens and features."""
    token = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    first = tl.program_id(1) * BLOCK_H
    feature = first + tl.arange(0, BLOCK_H)
    here = token < tokens
    inside = here[:, None] & (feature < width)[None, :]
    place = token
    if places is not None:
        place = tl.load(places + token, mask=here, other=0)
    found = (place >= 0) & (place < rows)
    keys = tl.load(token_key + place, mask=here & found, other=0)
    values = loaded(tl.load(x + token[:, None] * x_stride + feature[None, :], mask=inside, other=0.0))
    keep = hidden_kept(keys, first, philox_key, threshold, BLOCK_H)
    result = tl.where(keep, values.to(tl.float32) * scale, 0.0)
    if residual is not None:
        added = tl.load(residual + token[:, None] * residual_stride + feature[None, :], mask=inside, other=0.0)
        result += loaded(added).to(tl.float32)
    # A place outside the row must not read what lies behind its keys, nor go unseen.
    result = tl.where(found[:, None], result, float("nan"))
    out = output + token[:, None] * width + feature[None, :]
    tl.store(out, stored(result, output.dtype.element_ty), mask=inside)

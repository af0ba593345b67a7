"""The sum of the embeddings, with dropout, and the gradients of their tables.

Four tokens of five have block position 0, and a span's tokens all have the position of its mask: a gradient that adds
token by token queues up at a few rows. Here a tile first adds up the tokens that share a row, by a product with the
matrix of who shares with whom, and then adds one sum a row and tile.
"""

import triton
import triton.language as tl

from glm_kernels.dropout.triton_kernels import hidden_kept
from glm_kernels.interpreting import loaded, operand, stored


@triton.jit(do_not_specialize=["tokens", "first_word", "words", "positions", "blocks", "philox_key", "threshold"])
def embedding_kernel(
    base,  # [tokens, width] or None
    input_ids,  # int64 [tokens]
    position_ids,
    block_position_ids,
    word,  # [words, width] or None
    position,  # [positions, width] or None
    block_position,  # [blocks, width] or None
    output,  # [tokens, width]
    token_key,  # int64 [tokens] of RowKeys; None: no dropout
    base_stride,
    word_stride,
    position_stride,
    block_stride,
    tokens,
    width,
    first_word,  # id of the first row of `word`
    words,
    positions,
    blocks,
    missing,  # what a word outside the table is: 0 where another shard has it
    philox_key,
    threshold,
    scale,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """output = scale · kept · (base + word + position + block position); program (i, j): a tile of tokens, features."""
    token = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    first = tl.program_id(1) * BLOCK_H
    feature = first + tl.arange(0, BLOCK_H)
    here = token < tokens
    inside = here[:, None] & (feature < width)[None, :]
    total = tl.zeros([BLOCK_T, BLOCK_H], tl.float32)
    if base is not None:
        total += loaded(tl.load(base + token[:, None] * base_stride + feature[None, :], mask=inside, other=0.0))
    if word is not None:
        total += _rows(word, word_stride, input_ids + token, first_word, words, here, feature, width, missing)
    # An id outside these tables must not read what lies behind them, nor go unseen.
    if position is not None:
        total += _rows(
            position, position_stride, position_ids + token, 0, positions, here, feature, width, float("nan")
        )
    if block_position is not None:
        total += _rows(
            block_position, block_stride, block_position_ids + token, 0, blocks, here, feature, width, float("nan")
        )
    if token_key is not None:
        keys = tl.load(token_key + token, mask=here, other=0)
        total = tl.where(hidden_kept(keys, first, philox_key, threshold, BLOCK_H), total * scale, 0.0)
    out = output + token[:, None] * width + feature[None, :]
    tl.store(out, stored(total, output.dtype.element_ty), mask=inside)


@triton.jit
def _rows(table, stride, ids, first_id, rows, here, feature, width, missing):
    """The rows of a table that belong to ids, `missing` for ids of no row; int64 pointers [n] -> fp32 [n, features]."""
    row = tl.load(ids, mask=here, other=0) - first_id
    found = (row >= 0) & (row < rows)
    mask = (here & found)[:, None] & (feature < width)[None, :]
    values = loaded(tl.load(table + row[:, None] * stride + feature[None, :], mask=mask, other=0.0))
    return tl.where(found[:, None], values.to(tl.float32), missing)


@triton.jit
def _summed_by_row(
    upstream, stride, token, row, here, token_key, first, width, philox_key, threshold, scale, BLOCK_H: tl.constexpr
):
    """The gradient of each token's row from all tokens of a tile that share it.

    int64 [n] twice -> fp32 [n, BLOCK_H], and whether the token is the first of its row: bool [n].
    """
    feature = first + tl.arange(0, BLOCK_H)
    inside = here[:, None] & (feature < width)[None, :]
    gradient = loaded(tl.load(upstream + token[:, None] * stride + feature[None, :], mask=inside, other=0.0))
    if token_key is not None:
        keys = tl.load(token_key + token, mask=here, other=0)
        kept = hidden_kept(keys, first, philox_key, threshold, BLOCK_H)
        gradient = tl.where(kept, gradient, tl.zeros_like(gradient))
    place = tl.arange(0, token.shape[0])
    shared = (row[:, None] == row[None, :]) & here[None, :]
    leader = tl.min(tl.where(shared, place[None, :], token.shape[0]), 1) == place
    # Ones and zeros are exact in every type, and the tensor cores add in fp32.
    sharing = operand(tl.where(shared, 1.0, 0.0), upstream.dtype.element_ty)
    return tl.dot(sharing, gradient, input_precision="ieee") * scale, leader & here


@triton.jit(do_not_specialize=["tokens", "first_id", "rows", "philox_key", "threshold"])
def table_gradient_kernel(
    upstream,  # [tokens, width]
    ids,  # int64 [tokens]
    sums,  # fp32 [rows, width], added to
    token_key,  # int64 [tokens] of RowKeys; None: no dropout
    stride,
    tokens,
    width,
    first_id,
    rows,
    philox_key,
    threshold,
    scale,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Add scale · kept · upstream to the rows of its ids; program (i, j): a tile of tokens, features."""
    token = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    first = tl.program_id(1) * BLOCK_H
    here = token < tokens
    row = tl.load(ids + token, mask=here, other=0) - first_id
    total, leader = _summed_by_row(
        upstream, stride, token, row, here, token_key, first, width, philox_key, threshold, scale, BLOCK_H
    )
    feature = first + tl.arange(0, BLOCK_H)
    mask = (leader & (row >= 0) & (row < rows))[:, None] & (feature < width)[None, :]
    tl.atomic_add(sums + row[:, None] * width + feature[None, :], total, mask=mask, sem="relaxed")


@triton.jit(do_not_specialize=["tokens", "rows", "philox_key", "threshold"])
def sorted_gradient_kernel(
    upstream,  # [tokens, width]
    order,  # int64 [tokens], the tokens sorted by their row
    sorted_rows,  # int64 [tokens]
    gradient,  # [rows, width], zeros before
    partial,  # fp32 [tiles, 2, width]
    token_key,  # int64 [tokens] of RowKeys; None: no dropout
    stride,
    tokens,
    width,
    rows,
    philox_key,
    threshold,
    scale,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """The gradient of every row whose tokens stand in one tile of the sorted order; program (i, j): tile, features.

    Of a row that goes on in the next tile or comes from the one before, the tile's part is left in `partial`: in
    place 0 if it comes from the tile before, else in place 1.
    """
    start, first = tl.program_id(0) * BLOCK_T, tl.program_id(1) * BLOCK_H
    place = start + tl.arange(0, BLOCK_T)
    here = place < tokens
    row = tl.load(sorted_rows + place, mask=here, other=-1)
    token = tl.load(order + place, mask=here, other=0)
    total, leader = _summed_by_row(
        upstream, stride, token, row, here, token_key, first, width, philox_key, threshold, scale, BLOCK_H
    )
    before = tl.load(sorted_rows + start - 1, mask=start > 0, other=-1)
    after = tl.load(sorted_rows + start + BLOCK_T, mask=start + BLOCK_T < tokens, other=-1)
    feature = first + tl.arange(0, BLOCK_H)
    inside = (leader & (row < rows))[:, None] & (feature < width)[None, :]
    comes, goes = (row == before)[:, None], (row == after)[:, None]
    values = stored(total, gradient.dtype.element_ty)
    tl.store(gradient + row[:, None] * width + feature[None, :], values, mask=inside & ~comes & ~goes)
    slot = partial + (tl.program_id(0).to(tl.int64) * 2 + tl.where(comes, 0, 1)) * width + feature[None, :]
    tl.store(slot, total, mask=inside & (comes | goes))


@triton.jit(do_not_specialize=["tokens", "rows"])
def carried_gradient_kernel(
    sorted_rows,  # int64 [tokens]
    partial,  # fp32 [tiles, 2, width]
    gradient,  # [rows, width]
    tokens,
    width,
    rows,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """The gradient of the row that begins in a tile and goes on in the next; program (i, j): tile, features.

    BLOCK_T is that of `sorted_gradient_kernel`; BLOCK_S parts are added at a time.
    """
    tile = tl.program_id(0)
    end = (tile + 1) * BLOCK_T
    row = tl.load(sorted_rows + end - 1, mask=end < tokens, other=-1)
    after = tl.load(sorted_rows + end, mask=end < tokens, other=-2)
    before = tl.load(sorted_rows + tile * BLOCK_T - 1, mask=tile > 0, other=-1)
    feature = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    if (row == after) & (row != before) & (row < rows):
        inside = feature < width
        total = tl.load(partial + (tile.to(tl.int64) * 2 + 1) * width + feature, mask=inside, other=0.0)
        following = tile + 1
        going = True
        while going:
            tiles = following + tl.arange(0, BLOCK_S)
            starts = tiles * BLOCK_T
            same = tl.load(sorted_rows + starts, mask=starts < tokens, other=-1) == row
            parts = partial + tiles.to(tl.int64)[:, None] * 2 * width + feature[None, :]
            total += tl.sum(tl.load(parts, mask=same[:, None] & inside[None, :], other=0.0), 0)
            following += BLOCK_S
            going = tl.min(same.to(tl.int32), 0) == 1
        tl.store(gradient + row * width + feature, stored(total, gradient.dtype.element_ty), mask=inside)

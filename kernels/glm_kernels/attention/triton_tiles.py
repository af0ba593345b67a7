"""What the attention kernels share: which tiles they touch, and how a tile is loaded, multiplied and masked.

A program owns a tile of rows and walks over tiles of columns: queries over keys, or keys over queries, each row with
one interval of columns. The columns of a tile begin where the first interval does, not at a multiple of the tile's
size. Tiles that lie in the intervals of all rows need no mask; they come first, in a loop of their own, since a mask
behind an `if` in the loop makes the assembler serialize the tensor cores. The border tiles to their left and right
follow. Rows with an empty interval choose no tiles: their results are set at the end.

A head of 96 is multiplied as 64 + 32, and its neighbours alike: a tile of a head is a pair (first, second), the second
one a copy that nothing reads where SECOND is 0.
"""

import triton
import triton.language as tl

from glm_kernels.interpreting import loaded, stored

_LARGEST = tl.constexpr(2**31 - 1)


@triton.jit
def row_intervals(start, end, first_row, T, BLOCK: tl.constexpr):
    """The intervals of the BLOCK rows from first_row on: int32 [T] twice -> int32 [BLOCK] twice; empty from T on."""
    row = first_row + tl.arange(0, BLOCK)
    return tl.load(start + row, mask=row < T, other=0), tl.load(end + row, mask=row < T, other=0)


@triton.jit
def column_tiles(start, end, BLOCK: tl.constexpr):
    """The tiles of BLOCK columns that rows with these intervals touch; `schedule.py` is the plain reference.

    Returns:
        origin, the first column of tile 0; count of the tiles; those in range(first_full, end_full) need no mask.
    """
    some = start < end
    origin = tl.min(tl.where(some, start, _LARGEST))
    stop = tl.max(tl.where(some, end, 0))
    full_start = tl.max(tl.where(some, start, 0))
    full_stop = tl.min(tl.where(some, end, _LARGEST))
    count = tl.maximum(tl.cdiv(stop - origin, BLOCK), 0)
    first_full = tl.minimum(tl.maximum(tl.cdiv(full_start - origin, BLOCK), 0), count)
    end_full = tl.minimum(tl.maximum((full_stop - origin) // BLOCK, first_full), count)
    return origin, count, first_full, end_full


@triton.jit
def border_tile(number, first_full, end_full):
    """The border tile of this number: those left of the full tiles, then those right of them."""
    return tl.where(number < first_full, number, number + end_full - first_full)


@triton.jit
def load_pair(
    pointer,
    stride,
    valid,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHECKED: tl.constexpr,
):
    """A tile of a head, [rows, FIRST] and [rows, SECOND], 0 beyond HEAD_DIM and, if CHECKED, where a row is invalid.

    Args:
        pointer: the first row's. stride: elements from row to row. valid: bool [rows].
    """
    first = _load_features(pointer, stride, valid, 0, FIRST, HEAD_DIM, CHECKED)
    second = first
    if SECOND:
        second = _load_features(pointer, stride, valid, FIRST, SECOND, HEAD_DIM, CHECKED)
    return first, second


@triton.jit
def _load_features(
    pointer,
    stride,
    valid,
    BEGIN: tl.constexpr,
    WIDTH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHECKED: tl.constexpr,
):
    feature = BEGIN + tl.arange(0, WIDTH)
    places = pointer + tl.arange(0, valid.shape[0])[:, None] * stride + feature[None, :]
    if BEGIN + WIDTH > HEAD_DIM:
        inside = (feature < HEAD_DIM)[None, :]
        if CHECKED:
            inside = inside & valid[:, None]
        tile = tl.load(places, mask=inside, other=0.0)
    elif CHECKED:
        tile = tl.load(places, mask=valid[:, None], other=0.0)
    else:
        tile = tl.load(places)
    return loaded(tile)


@triton.jit
def store_pair(
    pointer,
    stride,
    valid,
    first,
    second,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Store fp32 [rows, FIRST] and [rows, SECOND] in the pointer's type, where a row is valid, up to HEAD_DIM."""
    _store_features(pointer, stride, valid, first, 0, FIRST, HEAD_DIM)
    if SECOND:
        _store_features(pointer, stride, valid, second, FIRST, SECOND, HEAD_DIM)


@triton.jit
def _store_features(pointer, stride, valid, tile, BEGIN: tl.constexpr, WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr):
    feature = BEGIN + tl.arange(0, WIDTH)
    places = pointer + tl.arange(0, valid.shape[0])[:, None] * stride + feature[None, :]
    inside = valid[:, None]
    if BEGIN + WIDTH > HEAD_DIM:
        inside = inside & (feature < HEAD_DIM)[None, :]
    tl.store(places, stored(tile, pointer.dtype.element_ty), mask=inside)


@triton.jit
def product_over_features(a_first, a_second, b_first, b_second, SECOND: tl.constexpr):
    """a · bᵀ of two tiles of a head: [M, d], [N, d] -> fp32 [M, N]."""
    product = tl.dot(a_first, tl.trans(b_first), input_precision="ieee")
    if SECOND:
        product = tl.dot(a_second, tl.trans(b_second), product, input_precision="ieee")
    return product


@triton.jit
def add_product(sum_first, sum_second, weights, first, second, SECOND: tl.constexpr):
    """sum + weights · tile, for both parts of a head: fp32 [M, d], [M, N], [N, d] -> fp32 [M, d]."""
    sum_first = tl.dot(weights, first, sum_first, input_precision="ieee")
    if SECOND:
        sum_second = tl.dot(weights, second, sum_second, input_precision="ieee")
    return sum_first, sum_second

"""The tiles that the kernels touch: all that a mask needs, none beside, and as many as the plain count says."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glm_kernels.attention.launch import launch_backward, launch_forward
from glm_kernels.attention.schedule import column_tiles, tile_efficiency, touched_tiles
from tests.kernels.attention.cases import glm, inputs, mask, tile
from tests.kernels.attention.test_interval_kernels import intervals_of


def bounds_of(visibility):
    return [
        bound.numpy()
        for bound in (visibility.key_start, visibility.key_end, visibility.query_start, visibility.query_end)
    ]


@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=12),
    block=st.sampled_from([1, 4, 16]),
)
def test_touched_tiles_hold_every_visible_pair_and_full_ones_no_other(rows, block):
    start, end = np.array(rows).T
    column = np.arange(40)
    visible = ((start[:, None] <= column) & (column < end[:, None]))[start < end]
    origin, count, first_full, end_full = column_tiles(start, end, block)
    touched = (column >= origin) & (column < origin + count * block)
    assert not visible[:, ~touched].any()
    assert 0 <= first_full <= end_full <= count
    full = (column >= origin + first_full * block) & (column < origin + end_full * block)
    assert visible[:, full].all()
    if count:  # the outermost tiles are needed
        assert visible[:, touched & (column < origin + block)].any()
        assert visible[:, touched & (column >= origin + (count - 1) * block)].any()
    seen_by_all = [visible[:, first : first + block].all() for first in range(origin, origin + count * block, block)]
    inside = [origin + (number + 1) * block <= 40 for number in range(count)]
    found = [number for number in range(count) if seen_by_all[number] and inside[number]]
    assert found == list(range(first_full, end_full))


@pytest.mark.parametrize(
    "visibility",
    [glm((60, 30), (20, 30), (3, 5), padding=8), mask("window", 150), mask("empty rows", 97), mask("full", 64)],
    ids=["packed", "window", "empty rows", "full"],
)
def test_the_kernels_count_the_tiles_that_the_plain_count_says(visibility):
    T, heads, block_m, block_n = visibility.length, 2, 16, 32
    *tensors, upstream = inputs(T, heads, 16)
    counts = [torch.full((heads, -(-T // block), 2), -1, dtype=torch.int32) for block in (block_m, block_n, block_m)]
    intervals, chosen = intervals_of(visibility), tile(block_m, block_n)
    saved = launch_forward(*tensors, intervals, None, tile=chosen, counts=counts[0])
    launch_backward(
        upstream, *tensors, *saved, None, intervals, None, tiles=(chosen, chosen), counts=(counts[1], counts[2])
    )
    key_start, key_end, query_start, query_end = bounds_of(visibility)
    by_query = touched_tiles(key_start, key_end, block_m, block_n)
    by_key = touched_tiles(query_start, query_end, block_n, block_m)
    assert by_query.sum() > 0
    for counted, expected in zip(counts, (by_query, by_key, by_query), strict=True):
        assert all(np.array_equal(of_head, expected) for of_head in counted.numpy())


def test_efficiency_is_visible_pairs_by_computed_area():
    key_start, key_end, *_ = bounds_of(glm((100, 28)))
    pairs, area = tile_efficiency(key_start, key_end, 64, 64)
    assert pairs == 100 * 100 + 28 * 100 + 28 * 29 // 2
    assert area == 2 * 2 * 64 * 64


def test_a_tile_of_padding_costs_nothing():
    key_start, key_end, *_ = bounds_of(glm((64, 0), padding=64))
    assert touched_tiles(key_start, key_end, 64, 64).tolist() == [[1, 0], [0, 0]]

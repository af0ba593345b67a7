"""The four integers of a token against the definition of the mask, pair by pair."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glm_kernels.attention import Visibility


@st.composite
def rows(draw):
    """Segments (start, length of A, end) one after another, and a row length with some padding."""
    segments, start = [], 0
    for part_a, part_b in draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=6)):
        if part_a + part_b:
            segments.append((start, part_a, start + part_a + part_b))
            start += part_a + part_b
    return segments, start + draw(st.integers(0, 5))


def sees(segments, query, key):
    """A token sees a key of its segment that is in part A, or not later than itself if it is in B."""
    for start, part_a, end in segments:
        if start <= query < end and start <= key < end:
            return key < start + part_a or start + part_a <= key <= query
    return False


@given(rows())
def test_the_intervals_say_who_sees_whom(row):
    segments, length = row
    visibility = Visibility.from_segments(segments, length)
    expected = [[sees(segments, query, key) for key in range(length)] for query in range(length)]
    assert visibility.dense().tolist() == expected


@given(rows())
def test_seen_from_the_keys_it_is_the_same_mask(row):
    visibility = Visibility.from_segments(*row)
    query = torch.arange(visibility.length)[:, None]
    by_key = (visibility.query_start <= query) & (query < visibility.query_end)
    assert torch.equal(by_key, visibility.dense())


def test_padding_sees_nothing_and_is_not_seen():
    dense = Visibility.from_segments([(0, 2, 5)], 8).dense()
    assert not dense[5:].any()
    assert not dense[:, 5:].any()


def test_a_row_costs_four_integers_a_token():
    visibility = Visibility.from_segments([(0, 459, 560)], 576).to("cpu")
    bounds = (visibility.key_start, visibility.key_end, visibility.query_start, visibility.query_end)
    assert all(bound.shape == (576,) and bound.dtype == torch.int32 for bound in bounds)
    assert visibility.segments == ((0, 459, 560),)


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([(1, 2, 4)], "segment 0 .* must start at 0"),
        ([(0, 2, 4), (3, 1, 6)], "segment 1 .* must start at 4"),
        ([(0, 5, 4)], "hold its part A"),
        ([(0, 0, 0)], "not be empty"),
        ([(0, 2, 9)], "end at 9, past the row of 8 tokens"),
    ],
)
def test_refuses_segments_that_do_not_tile_the_row(segments, message):
    with pytest.raises(ValueError, match=message):
        Visibility.from_segments(segments, 8)

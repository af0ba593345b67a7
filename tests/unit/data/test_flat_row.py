"""The arrays of a row, made at once: those that the plain references make piece by piece."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm_kernels.attention.visibility import Visibility
from glm_kernels.dropout.keys import RowKeys
from megatron_glm.data.flat_row import flat_row
from megatron_glm.objective.sample import Objective, Sample

BOUNDS = ("key_start", "key_end", "query_start", "query_end")


def make_sample(index, segments):
    """A sample of segments given as (length of part A, length of part B)."""
    lengths = np.array([a + b for a, b in segments], np.int64)
    ends = np.cumsum(lengths)
    T = int(lengths.sum())
    ids = np.arange(T, dtype=np.int32)
    bounds = [(end - a - b, a, end) for end, (a, b) in zip(ends.tolist(), segments, strict=True)]
    loss_mask = np.zeros(T, bool)
    for start, a, end in bounds:
        loss_mask[start + a : end] = True
    rows = (ids, ids + 1, loss_mask, ids + 2, ids + 3)
    return Sample(index, Objective.TOKEN, *rows, segments=np.array(bounds, np.int32).reshape(-1, 3))


samples = st.lists(
    st.tuples(
        st.integers(0, 2**62),
        st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=4),
    ),
    max_size=6,
).map(lambda drawn: [make_sample(*sample) for sample in drawn])


@settings(max_examples=60, deadline=None)
@given(samples=samples)
def test_intervals_and_keys_are_those_of_the_references(samples):
    row = flat_row(samples, pad_id=7)
    T = len(row.input_ids)
    starts = np.cumsum([0, *(len(sample.input_ids) for sample in samples)]).tolist()
    segments = [
        (start + begin, a, start + end)
        for sample, start in zip(samples, starts, strict=False)
        for begin, a, end in sample.segments.tolist()
    ]
    visibility = Visibility.from_segments(segments, T)
    keys = RowKeys.from_lengths([s.index for s in samples], [len(s.input_ids) for s in samples], T)
    for name in BOUNDS:
        assert np.array_equal(getattr(row, name), getattr(visibility, name).numpy())
        assert getattr(row, name).dtype == np.int32
    assert tuple(map(tuple, row.segments.tolist())) == visibility.segments
    assert tuple(map(tuple, row.spans.tolist())) == keys.spans
    assert np.array_equal(row.sample, keys.sample.numpy())
    assert np.array_equal(row.token, keys.token.numpy())
    assert (row.sample.dtype, row.token.dtype) == (np.int64, np.int32)


def test_refuses_more_tokens_than_the_capacity():
    with pytest.raises(ValueError, match="1 samples have 81 tokens, the row's capacity is 80"):
        flat_row([make_sample(1, [(10, 71)])], capacity=80, pad_id=7)

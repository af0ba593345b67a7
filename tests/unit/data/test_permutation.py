"""The order of an epoch: complete, keyed, uniform, and the same for ever."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from megatron_glm.data.permutation import Permutation, permute_each


@given(n=st.integers(1, 5000), key=st.integers(0, 2**63))
def test_visits_every_item_exactly_once(n, key):
    assert np.array_equal(np.sort(Permutation(n, key)(np.arange(n))), np.arange(n))


def test_one_entry_needs_no_other():
    order = Permutation(10**12, 7)
    whole = order(np.arange(1000))
    assert all(order(np.array([i]))[0] == whole[i] for i in (0, 499, 999))


def test_each_place_is_equally_likely_for_each_item():
    places = np.array([Permutation(8, 3, epoch)(np.arange(8)) for epoch in range(4000)])
    for place in range(8):
        assert chisquare(np.bincount(places[:, place], minlength=8)).pvalue > 1e-4


def test_order_is_frozen():
    # Runs in progress depend on these values: a change here breaks their resume.
    assert Permutation(10, 1, 2)(np.arange(10)).tolist() == [5, 2, 8, 0, 7, 6, 3, 4, 1, 9]


@pytest.mark.parametrize("n", [0, -1, 2**62])
def test_refuses_an_impossible_size(n):
    with pytest.raises(ValueError, match=f"got n={n}"):
        Permutation(n, 1)


@given(n=st.integers(1, 5000), key=st.integers(0, 2**63), data=st.data())
def test_the_inverse_says_where_an_item_stands(n, key, data):
    item = data.draw(st.integers(0, n - 1))
    order = Permutation(n, key)
    assert order(np.array([order.position_of(item)]))[0] == item


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=6), data=st.data())
def test_many_orders_together_are_each_by_itself(sizes, data):
    orders = [Permutation(n, key) for key, n in enumerate(sizes)]
    which = np.array(data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=30)), np.int64)
    index = np.array([data.draw(st.integers(0, sizes[order] - 1)) for order in which], np.int64)
    expected = [int(orders[order](np.array([i]))[0]) for order, i in zip(which.tolist(), index.tolist(), strict=True)]
    assert permute_each(orders, which, index).tolist() == expected


@pytest.mark.parametrize("item", [-1, 5])
def test_an_item_that_is_not_there_has_no_place(item):
    with pytest.raises(IndexError, match=f"item {item} lies outside range"):
        Permutation(5, 1).position_of(item)

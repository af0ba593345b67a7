"""The order of an epoch: complete, keyed, uniform, and the same for ever."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from megatron_glm.data.permutation import Permutation


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

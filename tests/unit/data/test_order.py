"""The order of the windows: each token once an epoch, in an order of chance, from any place on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from megatron_glm.data.order import Order


def epoch(order, number):
    """Starts and stops of an epoch of a single source, by start."""
    n = int(order.windows_per_epoch[0])
    _, start, stop = order.locate(np.arange(number * n, (number + 1) * n))
    by_place = np.lexsort([stop, start])
    return start[by_place], stop[by_place]


@settings(deadline=None)
@given(
    length=st.integers(1, 300),
    window=st.integers(2, 70),
    seed=st.integers(0, 2**63 - 1),
    number=st.integers(0, 1000),
)
def test_every_token_of_the_stream_is_in_one_window_of_an_epoch(length, window, seed, number):
    start, stop = epoch(Order([length], [1.0], window=window, seed=seed), number)
    assert start[0] == 0
    assert stop[-1] == length
    assert (start[1:] == stop[:-1]).all()
    assert (stop - start <= window - 1).all()
    assert (stop == start).sum() <= 1


def test_no_cut_occurs_twice_while_there_are_other_places():
    order = Order([1000], [1.0], window=12, seed=3)
    cuts = [set(epoch(order, number)[0].tolist()) - {0, 1000} for number in range(11)]
    assert set.union(*cuts) == set(range(1, 1000))
    assert sum(map(len, cuts)) == 999


def test_the_windows_of_an_epoch_come_in_any_order_alike():
    order = Order([40], [1.0], window=11, seed=5)
    n = int(order.windows_per_epoch[0])
    start = order.locate(np.arange(2000 * n))[1].reshape(2000, n)
    rank = start.argsort(kind="stable").argsort()
    for place in range(n):
        assert chisquare(np.bincount(rank[:, place], minlength=n)).pvalue > 1e-4


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 500), min_size=1, max_size=4),
    indices=st.lists(st.integers(0, 5000), max_size=40),
    seed=st.integers(0, 2**63 - 1),
)
def test_one_sample_s_place_needs_no_other(lengths, indices, seed):
    order = Order(lengths, [1.0 + k for k in range(len(lengths))], window=16, seed=seed)
    together = np.stack(order.locate(np.array(indices, np.int64)), axis=1)
    singly = [np.concatenate(order.locate(np.array([i]))) for i in indices]
    assert together.tolist() == [s.tolist() for s in singly]


def test_each_source_goes_through_its_epochs_at_its_own_pace():
    order = Order([100, 1000], [0.5, 0.5], window=11, seed=1)
    assert order.windows_per_epoch.tolist() == [11, 101]
    source, start, stop = order.locate(np.arange(2 * 101))
    for k, length in enumerate([100, 1000]):
        tokens = (stop - start)[source == k][: order.windows_per_epoch[k]].sum()
        assert tokens == length


def test_sources_and_seeds_and_epochs_have_orders_of_their_own():
    def starts(order, source):
        sources, start, _ = order.locate(np.arange(400))
        return start[sources == source][:100].tolist()

    order = Order([2000, 2000], [1.0, 1.0], window=21, seed=1)
    orders = [starts(order, 0), starts(order, 1), starts(Order([2000], [1.0], window=21, seed=2), 0)]
    orders.append(Order([2000], [1.0], window=21, seed=1).locate(np.arange(101, 201))[1].tolist())
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


def test_forty_billion_tokens_are_ordered_without_memory():
    order = Order([25 * 10**9, 15 * 10**9], [0.6, 0.4], window=512, seed=1)
    source, start, stop = order.locate(np.array([0, 10**6, 10**9, 10**12]))
    assert (stop - start == 511).all()
    assert (stop <= np.array([25 * 10**9, 15 * 10**9])[source]).all()


def test_the_order_is_frozen():
    # Runs in progress depend on these values: a change here breaks their resume.
    source, start, stop = Order([60, 35], [0.7, 0.3], window=11, seed=1234).locate(np.arange(20))
    assert source.tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1]
    assert start.tolist() == [0, 31, 32, 41, 21, 0, 51, 11, 1, 12, 54, 24, 22, 4, 44, 2, 0, 14, 34, 33]
    assert stop.tolist() == [1, 41, 35, 51, 31, 2, 60, 21, 11, 22, 60, 34, 32, 14, 54, 12, 4, 24, 44, 35]


@pytest.mark.parametrize("index", [-1, 2**62])
def test_refuses_an_index_that_no_run_reaches(index):
    with pytest.raises(IndexError, match=r"outside range\(2\*\*62\)"):
        Order([10], [1.0], window=4, seed=0).locate(np.array([index]))

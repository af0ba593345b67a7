"""The order of the windows: each token once an epoch, in an order of chance, from any place on."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from megatron_glm.data.epoch import windows_per_epoch
from megatron_glm.data.order import Change, Order
from megatron_glm.errors import ConfigError

WAVE = 16 * 1024  # windows


def by_place(start, stop):
    in_order = np.lexsort([stop, start])
    return start[in_order], stop[in_order]


def epoch(order, length, stride, number):
    """Starts and stops of an epoch of a single source, by start."""
    n = windows_per_epoch(length, stride)
    _, start, stop = order.locate(np.arange(number * n, (number + 1) * n))
    return by_place(start, stop)


def assert_covers_once(start, stop, length):
    start, stop = by_place(start, stop)
    assert start[0] == 0
    assert stop[-1] == length
    assert (start[1:] == stop[:-1]).all()


@settings(deadline=None)
@given(
    length=st.one_of(st.integers(1, 300), st.integers(30_000, 36_000)),
    window=st.integers(2, 70),
    seed=st.integers(0, 2**63 - 1),
    number=st.integers(0, 1000),
)
@example(length=2 * WAVE, window=2, seed=0, number=0)
@example(length=2 * WAVE + 1, window=2, seed=0, number=1)
@example(length=16, window=2, seed=0, number=0)
@example(length=17, window=2, seed=0, number=0)
def test_every_token_of_the_stream_is_in_one_window_of_an_epoch(length, window, seed, number):
    start, stop = epoch(Order([length], [1.0], window=window, seed=seed), length, window - 1, number)
    assert_covers_once(start, stop, length)
    assert (stop - start <= window - 1).all()
    assert (stop == start).sum() <= 1


def test_no_cut_occurs_twice_while_there_are_other_places():
    order = Order([1000], [1.0], window=12, seed=3)
    cuts = [set(epoch(order, 1000, 11, number)[0].tolist()) - {0, 1000} for number in range(11)]
    assert set.union(*cuts) == set(range(1, 1000))
    assert sum(map(len, cuts)) == 999


def test_the_windows_of_an_epoch_come_in_any_order_alike():
    order = Order([40], [1.0], window=11, seed=5)
    n = windows_per_epoch(40, 10)
    start = order.locate(np.arange(2000 * n))[1].reshape(2000, n)
    rank = start.argsort(kind="stable").argsort()
    for place in range(n):
        assert chisquare(np.bincount(rank[:, place], minlength=n)).pvalue > 1e-4


def test_a_part_of_an_epoch_comes_evenly_from_the_whole_corpus():
    length = 40 * WAVE
    order = Order([length], [1.0], window=2, seed=7)
    for first in (0, 1024, 3 * WAVE - 100, 20 * WAVE, 39 * WAVE):
        start = order.locate(np.arange(first, first + 1024))[1]
        assert len(np.unique(start // 16)) > 600  # blocks: random draws from a thousand would give 650
        # Two windows of a block are not independent draws, so the blocks are counted.
        blocks = np.unique(start // 16)
        assert chisquare(np.bincount(blocks * 16 * 32 // length, minlength=32)).pvalue > 1e-4


def test_the_windows_of_a_wave_are_mixed():
    order = Order([2 * WAVE], [1.0], window=2, seed=11)
    start = order.locate(np.arange(WAVE))[1]
    late = np.arange(WAVE) >= WAVE // 2  # every part of a block comes early as often as late
    counts = np.bincount(start[late] % 16, minlength=16)
    assert chisquare(counts).pvalue > 1e-4
    follows = np.abs(np.diff(start)) == 1
    assert follows.sum() < 20  # neighbours in the text come together as rarely as chance has it: about 2


def test_each_wave_has_any_part_of_the_corpus_alike():
    length = 3 * WAVE
    n = windows_per_epoch(length, 1)
    order = Order([length], [1.0], window=2, seed=13)
    wave_of_first_tokens = []
    for number in range(150):
        place = np.arange(number * n, (number + 1) * n, 5)  # a fifth of the windows
        start = order.locate(place)[1]
        near = np.flatnonzero(start < 16)
        if len(near):
            wave_of_first_tokens.append(int(place[near[0]] - number * n) // WAVE)
    assert chisquare(np.bincount(wave_of_first_tokens, minlength=3)[:3]).pvalue > 1e-4


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 500), min_size=1, max_size=4),
    indices=st.lists(st.integers(0, 5000), max_size=40),
    seed=st.integers(0, 2**63 - 1),
)
def test_one_sample_s_place_needs_no_other(lengths, indices, seed):
    changes = [Change(1000, (0,), (1.0,), 9), Change(3000, tuple(range(len(lengths))), (2.0,) * len(lengths), 20)]
    order = Order(lengths, [1.0 + k for k in range(len(lengths))], window=16, seed=seed, changes=changes)
    together = np.stack(order.locate(np.array(indices, np.int64)), axis=1)
    singly = [np.concatenate(order.locate(np.array([i]))) for i in indices]
    assert together.tolist() == [s.tolist() for s in singly]


def test_each_source_goes_through_its_epochs_at_its_own_pace():
    order = Order([100, 1000], [0.5, 0.5], window=11, seed=1)
    source, start, stop = order.locate(np.arange(2 * 101))
    for k, length in enumerate([100, 1000]):
        tokens = (stop - start)[source == k][: windows_per_epoch(length, 10)].sum()
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


def test_a_thousand_samples_of_a_hundred_sources_are_located_in_five_milliseconds():
    order = Order([10**9] * 100, [1.0] * 100, window=512, seed=1)
    order.locate(np.arange(1024))  # the first batch of a wave makes its permutations
    seconds = []
    for batch in range(1, 8):
        started = time.process_time()
        order.locate(np.arange(1024 * batch, 1024 * (batch + 1)))
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.005


def test_three_hundred_sources_take_their_turns_and_each_goes_through_its_epoch():
    order = Order([40 + k for k in range(300)], [1.0] * 300, window=11, seed=1)
    source, start, stop = order.locate(np.arange(300 * 4))
    assert np.bincount(source).tolist() == [4] * 300
    for number in (0, 255, 256, 299):
        of_it = source == number
        assert len({*zip(start[of_it].tolist(), stop[of_it].tolist(), strict=True)}) == 4


def test_the_order_is_frozen():
    # Runs in progress depend on these values: a change here breaks their resume.
    changes = [Change(10, (1, 0), (0.5, 0.5), 6)]
    source, start, stop = Order([60, 35], [0.7, 0.3], window=11, seed=1234, changes=changes).locate(np.arange(20))
    assert source.tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert start.tolist() == [49, 9, 32, 0, 39, 12, 19, 29, 59, 22, 2, 43, 0, 3, 15, 58, 30, 13, 5, 28]
    assert stop.tolist() == [59, 19, 35, 9, 49, 22, 29, 39, 60, 32, 12, 48, 2, 8, 20, 60, 35, 18, 10, 33]


@pytest.mark.parametrize("index", [-1, 2**62])
def test_refuses_an_index_that_no_run_reaches(index):
    with pytest.raises(IndexError, match=r"outside range\(2\*\*62\)"):
        Order([10], [1.0], window=4, seed=0).locate(np.array([index]))


# --- changes --------------------------------------------------------------------------------------


def phase_lists(most_samples):
    sources = st.sets(st.integers(0, 2), min_size=1)
    return st.lists(st.tuples(st.integers(1, most_samples), sources, st.integers(2, 9)), min_size=1, max_size=4)


def order_of_phases(lengths, window, phases, seed):
    """An order over three sources, and the first sample of its last phase."""
    changes, first = [], 0
    for samples, sources, new_window in phases:
        first += samples
        weights = tuple(1.0 + source for source in sources)
        changes.append(Change(first, tuple(sorted(sources, reverse=True)), weights, new_window))
    return Order(lengths, [3.0, 2.0, 1.0], window=window, seed=seed, changes=changes), first


def assert_every_epoch_is_whole(order, lengths, samples):
    """Each source's samples, one after another, hold the stream once, and once again, and at last a part of it."""
    source, start, stop = order.locate(np.arange(samples))
    for k, length in enumerate(lengths):
        full = (source == k) & (stop > start)
        starts, stops = start[full], stop[full]
        read = np.concatenate([[0], np.cumsum(stops - starts)])
        bounds = np.searchsorted(read, np.arange(0, int(read[-1]) + 1, length))
        assert (read[bounds] % length == 0).all()  # no window reaches over an epoch's end
        for begin, end in pairwise(bounds[:20].tolist()):
            assert_covers_once(starts[begin:end], stops[begin:end], length)
        pairs = zip(starts[bounds[-1] :], stops[bounds[-1] :], strict=True)
        tokens = [token for begin, end in pairs for token in range(begin, end)]
        assert len(set(tokens)) == len(tokens)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.tuples(*[st.integers(1, 700)] * 3),
    window=st.integers(2, 9),
    phases=phase_lists(300),
    seed=st.integers(0, 2**63 - 1),
)
def test_no_token_is_lost_or_repeated_in_an_epoch_with_changes(lengths, window, phases, seed):
    order, last = order_of_phases(lengths, window, phases, seed)
    assert_every_epoch_is_whole(order, lengths, last + 1000)


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.tuples(*[st.integers(17_000, 120_000)] * 3),
    window=st.integers(2, 4),
    phases=phase_lists(60_000),
    seed=st.integers(0, 2**63 - 1),
)
def test_no_token_is_lost_or_repeated_in_an_epoch_of_many_waves_with_changes(lengths, window, phases, seed):
    order, last = order_of_phases(lengths, window, phases, seed)
    assert_every_epoch_is_whole(order, lengths, last + 60_000)


def test_a_change_of_the_window_waits_for_the_end_of_the_wave_and_not_for_that_of_the_epoch():
    length = 16 * WAVE
    order = Order([length], [1.0], window=5, seed=3, changes=[Change(WAVE + 500, (0,), (1.0,), 8)])
    _, start, stop = order.locate(np.arange(length // 4))
    taken = stop - start
    assert (taken[: 2 * WAVE] == 4).sum() >= 2 * WAVE - 2  # the stream's ends may be short
    later = taken[2 * WAVE : 3 * WAVE]
    assert later.max() == 7
    assert (later == 7).mean() == pytest.approx(0.9, abs=0.01)  # a block of 64 tokens: nine of 7 and a rest of 1
    whole = np.flatnonzero(np.cumsum(taken) == length)[0] + 1
    assert_covers_once(start[:whole], stop[:whole], length)
    _, start, stop = order.locate(np.arange(whole, whole + 1000))
    assert (stop - start == 7).mean() > 0.99  # blocks of the new size


def test_a_change_at_the_first_sample_of_an_epoch_is_the_order_of_its_window():
    n = windows_per_epoch(1000, 10)
    order = Order([1000], [1.0], window=11, seed=3, changes=[Change(n, (0,), (1.0,), 21)])
    _, start, stop = order.locate(np.arange(n, n + windows_per_epoch(1000, 20)))
    assert_covers_once(start, stop, 1000)
    assert ((stop - start) == 20).sum() >= 48


def test_a_change_that_is_taken_back_before_it_begins_never_was():
    changes = [Change(100, (0,), (1.0,), 9), Change(200, (0,), (1.0,), 5)]
    there_and_back = Order([40 * WAVE], [1.0], window=5, seed=3, changes=changes)
    unchanged = Order([40 * WAVE], [1.0], window=5, seed=3)
    indices = np.arange(0, 12 * WAVE, 7)
    assert np.array_equal(there_and_back.locate(indices), unchanged.locate(indices))


def test_a_source_that_pauses_goes_on_where_it_was():
    changes = [Change(100, (1,), (1.0,), 11), Change(300, (1, 0), (0.4, 0.6), 11)]
    order = Order([5000, 700], [0.5, 0.5], window=11, seed=1, changes=changes)
    alone = [Order([5000], [1.0], window=11, seed=1).locate(np.arange(500))[1]]
    source, start, _ = order.locate(np.arange(600))
    assert not (source[100:300] == 0).any()
    mine = start[source == 0]
    assert mine.tolist() == alone[0][: len(mine)].tolist()


def test_a_source_that_comes_later_begins_at_its_beginning():
    order = Order([500, 800], [1.0], window=11, seed=1, changes=[Change(77, (1,), (1.0,), 11)])
    source, start, stop = order.locate(np.arange(77, 77 + windows_per_epoch(800, 10)))
    assert (source == 1).all()
    assert_covers_once(start, stop, 800)


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.integers(1, 50).map(lambda n: n / 10), min_size=2, max_size=4),
    first=st.integers(1, 500),
)
def test_in_every_phase_each_source_s_count_is_within_one_of_its_due(weights, first):
    sources = tuple(range(len(weights)))
    change = Change(first, sources[::-1], tuple(weights), 9)
    order = Order([100] * len(weights), weights, window=9, seed=0, changes=[change])
    for begin, shares in ((0, weights), (first, weights[::-1])):
        n = min(first, 400) if begin == 0 else 400
        source = order.locate(np.arange(begin, begin + n))[0]
        for k, share in enumerate(shares):
            due = np.arange(1, n + 1) * share / sum(shares)
            assert (np.abs(np.cumsum(source == k) - due) < 1 + 1e-9).all()


def test_what_comes_later_does_not_alter_what_came_before():
    changes = [Change(5000, (1, 0), (0.5, 0.5), 7), Change(9000, (0, 2), (0.5, 0.5), 3)]
    lengths = [30_000, 400, 90]
    before = Order(lengths[:2], [0.9, 0.1], window=5, seed=2).locate(np.arange(5000))
    assert np.array_equal(before, Order(lengths, [0.9, 0.1], window=5, seed=2, changes=changes).locate(np.arange(5000)))
    between = np.arange(9000)
    two = Order(lengths[:2], [0.9, 0.1], window=5, seed=2, changes=changes[:1]).locate(between)
    assert np.array_equal(two, Order(lengths, [0.9, 0.1], window=5, seed=2, changes=changes).locate(between))


def test_a_weight_that_is_too_small_is_named_with_its_phase():
    change = Change(5, (0, 1), (1.0, 1e-9), 9, "data.phases[2].sources")
    with pytest.raises(ConfigError, match=r"^data\.phases\[2\]\.sources\[1\]\.weight: 1e-09"):
        Order([10, 10], [1.0], window=9, seed=0, changes=[change])

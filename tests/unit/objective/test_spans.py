"""Spans: Poisson lengths, and places that are equally likely."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, poisson

from megatron_glm.objective.randomness import Draws, Purpose
from megatron_glm.objective.spans import SpanLengths, least_masked, place_apart


@pytest.mark.parametrize(("mean", "limit"), [(3.0, 500), (3.0, 4), (0.5, 500), (20.0, 500), (20.0, 12)])
def test_lengths_follow_a_poisson_distribution_without_zero_below_the_limit(mean, limit):
    lengths = SpanLengths(mean, 511)
    drawn = np.array([lengths.draw(u, limit) for u in Draws(1, 2).per_token(Purpose.LENGTH, 20_000)])
    values = np.arange(1, min(limit, int(mean + 6 * mean**0.5 + 8)) + 1)
    expected = poisson.pmf(values, mean) / poisson.pmf(values, mean).sum() * len(drawn)
    observed = np.bincount(drawn, minlength=values[-1] + 1)[1:]
    common = expected > 5
    rest = observed[~common].sum(), expected[~common].sum()
    if rest[1] > 5:
        assert chisquare([*observed[common], rest[0]], [*expected[common], rest[1]]).pvalue > 1e-4
    else:
        scale = observed[common].sum() / expected[common].sum()
        assert chisquare(observed[common], expected[common] * scale).pvalue > 1e-4


@given(
    mean=st.floats(1e-6, 1e5),
    longest=st.integers(1, 600),
    limit=st.integers(1, 600),
    u=st.one_of(st.just(0.0), st.just(1 - 2**-53), st.floats(0, 1, exclude_max=True)),
)
def test_no_length_passes_its_limit(mean, longest, limit, u):
    assert 1 <= SpanLengths(mean, longest).draw(u, limit) <= min(limit, longest)


def test_lengths_are_frozen():
    # Runs in progress depend on these values: a change here breaks their resume.
    lengths = SpanLengths(3.0, 511)
    assert [lengths.draw(u / 8, 511) for u in range(8)] == [1, 1, 2, 2, 3, 3, 4, 5]


@pytest.mark.parametrize(("n", "lengths"), [(5, (1, 1)), (9, (2, 1, 2)), (7, (3,)), (5, (1, 1, 1)), (3, (3,))])
def test_every_arrangement_of_given_lengths_is_equally_likely(n, lengths):
    slots = combinations(range(n - sum(lengths) + 1), len(lengths))
    before = np.cumsum([0, *lengths[:-1]])
    arrangements = {tuple(slot + before): 0 for slot in slots}
    for index in range(600 * len(arrangements)):
        numbers = Draws(5, index).per_token(Purpose.PLACE, len(lengths))
        arrangements[tuple(place_apart(lengths, n, numbers.tolist()))] += 1
    assert len(arrangements) == 1 or chisquare(list(arrangements.values())).pvalue > 1e-4


def test_two_single_tokens_in_five_have_six_arrangements_of_one_probability():
    # The original gives the pairs with one token between them half the weight of the others.
    seen = [tuple(place_apart((1, 1), 5, list(Draws(9, i).per_token(Purpose.PLACE, 2)))) for i in range(6000)]
    pairs, counts = np.unique(seen, axis=0, return_counts=True)
    assert pairs.tolist() == [[0, 2], [0, 3], [0, 4], [1, 3], [1, 4], [2, 4]]
    assert chisquare(counts).pvalue > 1e-4


@given(st.data())
def test_placed_spans_fit_and_never_touch(data):
    lengths = data.draw(st.lists(st.integers(1, 9), max_size=20))
    n = sum(lengths) + max(0, len(lengths) - 1) + data.draw(st.integers(0, 30))
    unit = st.one_of(st.just(1 - 2**-53), st.floats(0, 1, exclude_max=True))
    starts = place_apart(lengths, n, data.draw(st.lists(unit, min_size=len(lengths), max_size=len(lengths))))
    stops = [start + length for start, length in zip(starts, lengths, strict=True)]
    assert all(start >= 0 for start in starts)
    assert all(stop <= n for stop in stops)
    assert all(following > stop for stop, following in zip(stops, starts[1:], strict=False))


@pytest.mark.parametrize(
    ("ratio", "n", "least"),
    [(0.15, 1, 1), (0.15, 6, 1), (0.15, 7, 2), (0.15, 100, 15), (0.55, 100, 55), (0.5, 3, 2), (1.0, 4, 4)],
)
def test_the_least_masked_is_the_ratio_rounded_up(ratio, n, least):
    assert least_masked(ratio, n) == least

"""The blend of sources: every count within one of its due at every moment."""

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megatron_glm.data.blend import MAX_PERIOD, Blend
from megatron_glm.errors import ConfigError


def period_of(weights):
    """The common denominator of the shares, from the definition."""
    exact = [Fraction(str(weight)) for weight in weights]
    return math.lcm(*((weight / sum(exact)).denominator for weight in exact))


any_weights = st.lists(st.floats(0.01, 100).map(lambda w: float(f"{w:.2g}")), min_size=1, max_size=8)
weight_sets = any_weights.filter(lambda weights: period_of(weights) <= MAX_PERIOD)


def largest_lag(blend, n):
    """The largest |count − due| of a source after 1 … n samples, exactly."""
    source, _ = blend(np.arange(n))
    worst = Fraction(0)
    for k, weight in enumerate(blend.weights):
        lag = np.cumsum(source == k) * weight.denominator - np.arange(1, n + 1) * weight.numerator
        worst = max(worst, Fraction(int(np.abs(lag).max()), weight.denominator))
    return worst


@settings(max_examples=60, deadline=None)
@given(weights=weight_sets)
@example([1.0, 1.0, 1.0])
@example([0.7, 0.2, 0.1])
@example([1, 2])
@example([30.0, 0.01, 0.01, 0.01, 0.01])
def test_every_count_is_within_one_of_its_due(weights):
    blend = Blend(weights)
    assert largest_lag(blend, min(2 * blend.period + 1, 3000)) < 1


@pytest.mark.parametrize("weights", [[20001, 30002, 15533], [613.0] + [0.03] * 40])
def test_counts_stay_within_one_of_their_due_through_a_whole_long_period(weights):
    blend = Blend(weights)
    assert blend.period > 20_000
    assert largest_lag(blend, blend.period + 10) < 1


@settings(max_examples=60, deadline=None)
@given(weights=weight_sets, start=st.integers(0, 2**61))
def test_a_source_s_samples_are_counted_from_zero_without_gaps(weights, start):
    blend = Blend(weights)
    source, ordinal = blend(np.arange(500))
    for k in range(len(weights)):
        assert ordinal[source == k].tolist() == list(range((source == k).sum()))
    source, ordinal = blend(start + np.arange(500))
    for k in range(len(weights)):
        assert (np.diff(ordinal[source == k]) == 1).all()


@settings(max_examples=60, deadline=None)
@given(weights=weight_sets)
def test_the_weights_are_the_asked_ones_exactly(weights):
    exact = [Fraction(str(w)) for w in weights]
    assert list(Blend(weights).weights) == [w / sum(exact) for w in exact]


@pytest.mark.parametrize("weights", [[0.31415926, 0.27182818, 1.41421356], [1 / 3, 1 / 2, 1 / 6]])
def test_weights_that_cannot_be_kept_exactly_are_refused_with_the_nearest_that_can(weights):
    with pytest.raises(ConfigError, match=r"data\.sources: the shares .* no common denominator") as refused:
        Blend(weights)
    nearest = [int(weight) for weight in str(refused.value).rpartition("are ")[2].split(", ")]
    for weight, asked in zip(Blend(nearest).weights, weights, strict=True):
        assert abs(float(weight) - asked / sum(weights)) < 1 / MAX_PERIOD


def test_one_entry_needs_no_other():
    blend = Blend([0.3, 0.5, 0.2])
    source, ordinal = blend(np.arange(1000))
    for i in (0, 1, 499, 999):
        assert [a.tolist() for a in blend(np.array([i]))] == [[source[i]], [ordinal[i]]]


def test_decimal_weights_are_exact():
    assert Blend([0.1, 0.2, 0.7]).weights == (Fraction(1, 10), Fraction(1, 5), Fraction(7, 10))


def test_a_single_source_has_every_sample():
    source, ordinal = Blend([0.37])(np.array([0, 5, 2**61]))
    assert source.tolist() == [0, 0, 0]
    assert ordinal.tolist() == [0, 5, 2**61]


def test_the_sequence_is_frozen():
    # Runs in progress depend on these values: a change here breaks their resume.
    assert Blend([0.5, 0.3, 0.2])(np.arange(10))[0].tolist() == [0, 1, 0, 2, 0, 1, 0, 1, 0, 2]


def test_the_longest_period_is_scheduled_in_a_fifth_of_a_second():
    Blend([1.0, 1.0])  # NumPy's first call is slow
    seconds = []
    for _ in range(3):
        started = time.process_time()
        assert Blend([20001, 30002, 15533]).period == MAX_PERIOD
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.2


def test_a_weight_too_small_for_the_period_is_refused():
    with pytest.raises(ConfigError, match=r"data\.sources\[1\]\.weight: 1e-09 is a share of 1e-09"):
        Blend([1.0, 1e-9])


@pytest.mark.parametrize("weights", [[], [1.0, 0.0], [-1.0]])
def test_refuses_weights_that_are_not_positive(weights):
    with pytest.raises(ValueError, match="positive weights"):
        Blend(weights)


@settings(max_examples=60, deadline=None)
@given(weights=weight_sets, n=st.integers(0, 3000))
def test_counts_before_a_sample_are_those_of_the_sequence(weights, n):
    blend = Blend(weights)
    expected = np.bincount(blend(np.arange(n))[0], minlength=len(weights))
    assert blend.counts_before(n).tolist() == expected.tolist()

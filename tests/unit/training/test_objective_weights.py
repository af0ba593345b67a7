"""What a target weighs: the whole batch decides, never its partition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.training.objective_weights import combine, objective_weights

COUNTS = st.lists(st.integers(0, 1000), min_size=3, max_size=3)
MIXTURE = (0.5, 0.2, 0.3)


def test_each_objective_weighs_as_its_probability():
    weights = objective_weights((10, 20, 40), MIXTURE, "per_objective")
    assert weights == pytest.approx((0.05, 0.01, 0.0075))


def test_probabilities_are_renormalised_over_the_objectives_that_occur():
    assert objective_weights((10, 0, 40), MIXTURE, "per_objective") == pytest.approx((0.0625, 0.0, 0.375 / 40))


def test_one_mean_over_all_targets_is_the_alternative():
    assert objective_weights((10, 0, 40), MIXTURE, "per_token") == pytest.approx((0.02, 0.0, 0.02))


def test_targets_of_an_objective_without_probability_weigh_nothing():
    assert objective_weights((10, 20, 0), (0.0, 1.0, 0.0), "per_objective") == pytest.approx((0.0, 0.05, 0.0))
    assert objective_weights((10, 0, 0), (0.0, 1.0, 0.0), "per_objective") == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("normalization", ["per_objective", "per_token"])
@given(counts=COUNTS)
def test_a_constant_loss_is_its_own_mean(normalization, counts):
    weights = objective_weights(counts, MIXTURE, normalization)
    sums = [2.5 * count for count in counts]
    assert combine(sums, weights) == pytest.approx(2.5 if any(counts) else 0.0)


@pytest.mark.parametrize("normalization", ["per_objective", "per_token"])
@given(parts=st.lists(COUNTS, min_size=1, max_size=5), nll=st.floats(0, 10))
def test_the_sum_over_any_partition_is_the_loss_of_the_whole(normalization, parts, nll):
    totals = [sum(column) for column in zip(*parts, strict=True)]
    weights = objective_weights(totals, MIXTURE, normalization)
    whole = combine([nll * total for total in totals], weights)
    assert sum(combine([nll * count for count in part], weights) for part in parts) == pytest.approx(whole)

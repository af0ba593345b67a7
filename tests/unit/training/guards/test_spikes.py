"""A spike is told from noise, from a falling loss, from another mixture; and a resume judges alike."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.training.guards.spikes import SpikeDetector, StepLoss

LEVELS = np.array([2.0, 4.0, 6.0])  # of the objectives


def step(rng, counts=(100, 20, 100), noise=0.05, excess=0.0):
    """A step whose objectives are near their levels, as the exact loss per token weighs them."""
    counts = np.array(counts)
    means = LEVELS + noise * rng.standard_normal(3) + excess
    weights = np.where(counts > 0, 1 / counts.sum(), 0.0)
    sums = means * counts
    return StepLoss(float(sums @ weights), sums.tolist(), counts.tolist(), weights.tolist())


def detector_after(rng, steps=64, window=64, factor=10.0, **kind):
    detector = SpikeDetector(window, factor)
    for _ in range(steps):
        detector.add(step(rng, **kind))
    return detector


@given(seed=st.integers(0, 2**32))
def test_a_step_far_above_the_others_is_one_and_noise_is_none(seed):
    rng = np.random.default_rng(seed)
    detector = detector_after(rng)
    assert all(detector.find(step(rng)) is None for _ in range(50))
    spike = detector.find(step(rng, excess=1.5))
    assert spike is not None
    assert spike.deviations > 10
    assert spike.expected == pytest.approx((2 * 100 + 4 * 20 + 6 * 100) / 220, abs=0.1)


def test_spikes_that_are_remembered_do_not_hide_the_next():
    rng = np.random.default_rng(1)
    detector = detector_after(rng)
    for _ in range(20):  # a third of what is remembered: mean and standard deviation would have moved
        detector.add(step(rng, excess=5.0))
    assert detector.find(step(rng, excess=5.0)) is not None


def test_a_falling_loss_is_none():
    rng = np.random.default_rng(2)
    detector = SpikeDetector(64, 10.0)
    for number in range(500):
        one = step(rng, excess=5 * np.exp(-number / 100))
        assert detector.find(one) is None
        detector.add(one)


def test_another_mixture_is_none_though_its_loss_is_twice_as_large():
    rng = np.random.default_rng(3)
    detector = detector_after(rng, counts=(200, 5, 15))
    documents = step(rng, counts=(5, 5, 200))
    assert documents.loss > 2 * detector_loss(rng)
    assert detector.find(documents) is None
    assert detector.find(step(rng, counts=(5, 5, 200), excess=1.5)) is not None


def detector_loss(rng):
    return step(rng, counts=(200, 5, 15)).loss


def test_an_objective_without_targets_plays_no_part_and_one_that_is_new_is_not_judged():
    rng = np.random.default_rng(4)
    detector = detector_after(rng, counts=(100, 0, 0))
    assert detector.find(step(rng, counts=(100, 0, 0), excess=2.0)) is not None
    assert detector.find(step(rng, counts=(100, 0, 10), excess=2.0)) is None


def test_with_less_than_half_a_window_nothing_is_one():
    rng = np.random.default_rng(5)
    assert detector_after(rng, steps=31).find(step(rng, excess=100.0)) is None
    assert detector_after(rng, steps=32).find(step(rng, excess=100.0)) is not None


def test_steps_that_are_all_alike_make_no_spike_of_a_rounding_difference():
    rng = np.random.default_rng(6)
    detector = detector_after(rng, noise=0.0)
    assert detector.find(step(rng, noise=0.0, excess=1e-6)) is None
    assert detector.find(step(rng, noise=0.0, excess=0.1)) is not None


def test_a_step_without_targets_is_none():
    rng = np.random.default_rng(7)
    empty = StepLoss(0.0, [0.0] * 3, [0] * 3, [0.0] * 3)
    detector = detector_after(rng)
    assert detector.find(empty) is None
    detector.add(empty)
    assert detector.find(step(rng, excess=1.5)) is not None


@given(seed=st.integers(0, 2**32), excess=st.floats(-1, 3))
def test_a_state_that_went_through_json_judges_alike(seed, excess):
    rng = np.random.default_rng(seed)
    whole, resumed = detector_after(rng, counts=(100, 0, 7)), SpikeDetector(64, 10.0)
    resumed.load(json.loads(json.dumps(whole.state())))
    one = step(rng, excess=excess, counts=(100, 0, 7))
    assert resumed.find(one) == whole.find(one)

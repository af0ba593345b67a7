"""The learning rate: up in a line, down along the curve, and flat at the floor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.config.schema import EmbeddingGradient, Schedule
from megatron_glm.training.schedule import embedding_gradient_factor, learning_rate

schedules = st.builds(
    lambda warmup, decaying, **settings: Schedule(
        warmup_steps=warmup, decay_steps=decaying and warmup + decaying, **settings
    ),
    warmup=st.integers(0, 50),
    decaying=st.none() | st.integers(1, 120),
    decay=st.sampled_from(["cosine", "linear"]),
    floor=st.floats(0, 1),
)


def rates(schedule, total_steps, steps):
    return [learning_rate(schedule, 2.0, total_steps, step) for step in steps]


def test_warm_up_is_a_line_that_ends_at_the_peak():
    schedule = Schedule(warmup_steps=4, decay_steps=10)
    assert rates(schedule, 100, [1, 2, 3, 4]) == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize(
    ("decay", "expected"), [("linear", [1.55, 1.1, 0.65, 0.2, 0.2]), ("cosine", [1.736396, 1.1, 0.463604, 0.2, 0.2])]
)
def test_decay_ends_at_the_floor_and_stays_there(decay, expected):
    schedule = Schedule(decay=decay, warmup_steps=4, decay_steps=12, floor=0.1)
    assert rates(schedule, 100, [6, 8, 10, 12, 90]) == pytest.approx(expected, abs=1e-6)


def test_without_decay_steps_the_floor_comes_with_the_last_step():
    schedule = Schedule(decay="linear", floor=0.25)
    assert rates(schedule, 8, [1, 4, 8]) == [pytest.approx(1.8125), 1.25, 0.5]


@given(schedule=schedules, total_steps=st.integers(1, 150))
def test_it_rises_then_falls_and_is_never_below_the_floor_after_warm_up(schedule, total_steps):
    up = rates(schedule, total_steps, range(1, schedule.warmup_steps + 1))
    down = rates(schedule, total_steps, range(schedule.warmup_steps + 1, 200))
    assert up == sorted(up)
    assert down == sorted(down, reverse=True)
    assert all(0 < rate <= 2.0 for rate in up)
    assert all(2.0 * schedule.floor * (1 - 1e-15) <= rate <= 2.0 for rate in down)


def test_the_embedding_gradient_is_held_and_then_rises_to_one():
    settings = EmbeddingGradient(factor=0.2, hold_samples=10, rise_samples=4)
    factors = [embedding_gradient_factor(settings, samples) for samples in (0, 10, 11, 12, 14, 99)]
    assert factors == pytest.approx([0.2, 0.2, 0.4, 0.6, 1.0, 1.0])


def test_the_embedding_gradient_is_left_alone_by_default_and_held_where_nothing_lifts_it():
    assert embedding_gradient_factor(EmbeddingGradient(), 10**9) == 1.0
    assert embedding_gradient_factor(EmbeddingGradient(factor=0.1), 10**12) == 0.1

"""The batch arithmetic is exact, or its error shows the sum."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.config.batching import BatchSizes, accumulation_steps
from megatron_glm.config.schema import Train
from megatron_glm.errors import ConfigError


@given(micro=st.integers(1, 64), accumulation=st.integers(1, 64), data_parallel=st.integers(1, 64))
def test_an_exact_split_is_found(micro, accumulation, data_parallel):
    assert accumulation_steps(micro * accumulation * data_parallel, micro, data_parallel) == accumulation


def test_an_impossible_split_shows_the_arithmetic():
    expected = (
        "train.global_batch_size: 1000 is not micro_batch_size × accumulation × data parallel = 16 × a × 8;"
        " nearest are 896 and 1024"
    )
    with pytest.raises(ConfigError, match=re.escape(expected)):
        accumulation_steps(1000, 16, 8)


def test_a_batch_smaller_than_one_micro_batch_names_the_smallest():
    with pytest.raises(ConfigError, match="the smallest is 8"):
        accumulation_steps(3, 4, 2)


def ramp(final, **settings):
    return Train(output="-", steps=1, global_batch_size=final, micro_batch_size=1, batch_ramp=settings)


def test_without_a_ramp_every_step_has_the_global_batch():
    sizes = BatchSizes.of(ramp(12))
    assert {sizes.at(consumed) for consumed in (0, 1, 10**15)} == {12}
    assert sizes == BatchSizes(12, 12, 1, 1)


def test_a_ramp_rises_by_equal_shares_of_its_samples():
    sizes = BatchSizes.of(ramp(8, start=2, increment=2, samples=12))
    assert [sizes.at(consumed) for consumed in range(14)] == [2] * 4 + [4] * 4 + [6] * 4 + [8] * 2


@given(
    start=st.integers(1, 50),
    increment=st.integers(1, 50),
    increments=st.integers(1, 50),
    samples=st.integers(1, 10**12),
    consumed=st.integers(0, 10**13),
)
def test_a_ramp_never_falls_and_ends_at_the_global_batch(start, increment, increments, samples, consumed):
    final = start + increments * increment
    sizes = BatchSizes(final, start, increment, samples)
    assert sizes.at(0) == start
    assert start <= sizes.at(consumed) <= sizes.at(consumed + 1) <= final
    assert (sizes.at(consumed) - start) % increment == 0
    assert sizes.at(samples) == final


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": 6, "increment": 4}, "batch_ramp.start: 6 is not .* = 2 × a × 2; nearest are 4 and 8"),
        ({"start": 4, "increment": 2}, "batch_ramp.increment: 2 is not .* = 2 × a × 2; the smallest is 4"),
    ],
)
def test_every_size_of_a_ramp_must_divide(settings, message):
    with pytest.raises(ConfigError, match=message):
        BatchSizes.of(ramp(20 if settings["start"] == 4 else 22, **settings, samples=9)).accumulation(2, 2)
    assert BatchSizes.of(ramp(20, start=4, increment=8, samples=9)).accumulation(2, 2) == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": 8, "increment": 2}, "start 8 must be below global_batch_size 8"),
        ({"start": 1, "increment": 2}, "miss global_batch_size 8; nearest start is 2"),
    ],
)
def test_a_ramp_that_misses_the_global_batch_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ramp(8, **settings)

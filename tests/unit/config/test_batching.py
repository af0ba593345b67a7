"""The batch arithmetic is exact, or its error shows the sum."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.config.batching import accumulation_steps
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

"""How layouts are compared: what is not a number must not pass for equal."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from megatron_glm.config.schema import Parallel
from tests.distributed.training.layouts import Differences, differences, of_largest

ONES = {"loss": [2.0, 0.0], "norm": [4.0, 0.0], "gradients": {"a.bias": np.ones(3), "b.bias": np.zeros(3)}}


def compared(changed: dict) -> Differences:
    return differences({**ONES, **changed}, ONES, SimpleNamespace(parallel=Parallel()), processes=1, rank=0)


def test_equal_results_have_no_difference_though_some_are_zero():
    assert compared({}) == Differences(0.0, "a.bias", 0.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["a.bias", "b.bias"])
def test_a_gradient_that_is_no_number_is_infinitely_wrong(bad, name):
    found = compared({"gradients": ONES["gradients"] | {name: np.array([0.0, bad, 0.0])}})
    assert (found.gradient, found.parameter) == (math.inf, name)
    assert not found.is_equal


@pytest.mark.parametrize("key", ["loss", "norm"])
@pytest.mark.parametrize("wrong", [[2.0, math.nan], [math.nan, 0.0], [2.0, 1e-9]])
def test_a_loss_or_norm_that_is_no_number_is_infinitely_wrong(key, wrong):
    assert getattr(compared({key: wrong}), key) == math.inf


def test_an_error_is_told_relative_to_the_largest_entry():
    assert of_largest(np.array([0.0, -0.5]), np.array([-4.0, 1.0])) == 0.125

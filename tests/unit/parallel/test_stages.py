"""Layers over stages: consecutive, none empty, and no division has a faster slowest stage."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_glm.parallel.stages import balanced_stages


@st.composite
def problems(draw):
    costs = draw(st.lists(st.integers(0, 9), min_size=1, max_size=9))
    return costs, draw(st.integers(1, len(costs)))


def slowest(costs, bounds):
    return max(sum(costs[start:stop]) for start, stop in pairwise(bounds))


@settings(deadline=None)
@given(problems())
def test_every_layer_is_in_one_stage_and_every_stage_has_one(problem):
    costs, stages = problem
    found = balanced_stages(costs, stages)
    assert [layer for stage in found for layer in stage] == list(range(len(costs)))
    assert len(found) == stages
    assert all(found)


@settings(deadline=None)
@given(problems())
def test_no_other_division_has_a_faster_slowest_stage(problem):
    costs, stages = problem
    found = [0, *(stage.stop for stage in balanced_stages(costs, stages))]
    others = ([0, *inner, len(costs)] for inner in combinations(range(1, len(costs)), stages - 1))
    assert slowest(costs, found) == min(slowest(costs, bounds) for bounds in others)


@pytest.mark.parametrize(
    ("costs", "lengths"),
    [([1] * 8, [2, 2, 2, 2]), ([1] * 7 + [3], [2, 2, 3, 1]), ([4] + [1] * 7, [1, 2, 2, 3]), ([1] * 10, [2, 2, 3, 3])],
)
def test_stages_are_those_one_would_choose(costs, lengths):
    assert [len(stage) for stage in balanced_stages(costs, 4)] == lengths

"""Who has which part: the three axes of a layout."""

import pytest
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.errors import ConfigError
from megatron_glm.parallel.layout import Layout

sizes = st.integers(1, 5)


@given(data=sizes, pipeline=sizes, tensor=sizes)
def test_every_rank_stands_at_one_place_and_in_one_group_of_each_axis(data, pipeline, tensor):
    layout = Layout(data, pipeline, tensor)
    ranks = list(range(layout.processes))
    assert [layout.rank(layout.coordinates(rank)) for rank in ranks] == ranks
    for groups, size in [
        (layout.tensor_groups(), tensor),
        (layout.data_groups(), data),
        (layout.pipeline_groups(), pipeline),
    ]:
        assert all(len(group) == size for group in groups)
        assert sorted(rank for group in groups for rank in group) == ranks


@given(data=sizes, pipeline=sizes, tensor=sizes)
def test_the_order_is_that_of_deepspeeds_pipeline_topology(data, pipeline, tensor):
    layout = Layout(data, pipeline, tensor)
    topology = PipeModelDataParallelTopology(num_pp=pipeline, num_mp=tensor, num_dp=data)
    for rank in range(layout.processes):
        place, there = layout.coordinates(rank), topology.get_coord(rank)
        assert (place.pipeline, place.data, place.tensor) == (there.pipe, there.data, there.model)


@given(data=sizes, pipeline=sizes, tensor=sizes)
def test_the_ranks_that_share_a_layer_are_neighbours(data, pipeline, tensor):
    for group in Layout(data, pipeline, tensor).tensor_groups():
        assert group == list(range(group[0], group[0] + tensor))


@given(data=sizes, pipeline=sizes, tensor=sizes)
def test_the_ends_of_each_pipeline_are_its_first_and_its_last_stage(data, pipeline, tensor):
    layout = Layout(data, pipeline, tensor)
    groups = layout.end_groups()
    assert len(groups) == (data * tensor if pipeline > 1 else 0)
    for first, last in groups:
        a, b = layout.coordinates(first), layout.coordinates(last)
        assert (a.pipeline, b.pipeline) == (0, pipeline - 1)
        assert (a.data, a.tensor) == (b.data, b.tensor)


def test_what_tensor_and_pipeline_leave_over_are_replicas():
    assert Layout.of(16, tensor=2, pipeline=4) == Layout(data=2, pipeline=4, tensor=2)


@pytest.mark.parametrize(("processes", "hint"), [(6, "start 4 or 8"), (3, "start at least 4")])
def test_processes_that_do_not_divide_are_refused_with_the_nearest_that_do(processes, hint):
    with pytest.raises(ConfigError, match=rf"{processes} processes; {hint} \(.* --num_accelerators [84]"):
        Layout.of(processes, tensor=2, pipeline=2)

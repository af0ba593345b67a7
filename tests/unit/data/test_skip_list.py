"""Samples that are left out: no step has them, and all others come once, in order, in any layout, after any resume."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_glm.config.batching import BatchSizes
from megatron_glm.data.loader import StepLoader
from megatron_glm.data.replica_share import step_end, step_indices
from megatron_glm.data.skip_list import SkipList, ranges_of

some_ranges = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)).map(lambda r: (r[0], sum(r))), max_size=8)
RAMP = BatchSizes(final=24, start=12, increment=12, ramp_samples=100)


def left_out(ranges):
    return {sample for first, end in ranges for sample in range(first, end)}


@given(ranges=some_ranges)
def test_ranges_in_any_order_are_merged_and_lose_nothing(ranges):
    merged = SkipList.of(ranges).ranges
    assert left_out(merged) == left_out(ranges)
    bounds = [bound for pair in merged for bound in pair]
    assert bounds == sorted(set(bounds))  # disjoint, not empty, and not touching
    assert SkipList.of(merged[::-1]).ranges == merged


@given(ranges=some_ranges, start=st.integers(0, 400), count=st.integers(0, 200))
def test_the_next_samples_are_those_that_are_not_left_out(ranges, start, count):
    gone = left_out(ranges)
    expected = [sample for sample in range(start, start + count + len(gone) + 1) if sample not in gone][:count]
    assert SkipList.of(ranges).take(start, count).tolist() == expected


@given(first=st.integers(0, 2**62 - 2**20), count=st.integers(1, 100))
def test_an_empty_list_leaves_nothing_out(first, count):
    assert SkipList().take(first, count).tolist() == list(range(first, first + count))


@given(samples=st.sets(st.integers(0, 200)))
def test_samples_are_told_as_the_fewest_ranges(samples):
    ranges = ranges_of(np.array(sorted(samples), np.int64))
    assert left_out(ranges) == samples
    assert ranges == [list(pair) for pair in SkipList.of(ranges).ranges]


@given(
    ranges=some_ranges,
    layout=st.sampled_from([(dp, micro) for dp in (1, 2, 3, 4) for micro in (1, 3)]),
    start=st.integers(0, 350),
)
def test_the_replicas_together_have_the_step_s_samples_each_once(ranges, layout, start):
    skips, (dp_size, micro) = SkipList.of(ranges), layout
    shares = [step_indices(start, 36, rank, dp_size, micro, skips) for rank in range(dp_size)]
    together = np.sort(np.concatenate(shares, axis=None))
    assert together.tolist() == skips.take(start, 36).tolist()
    assert step_end(start, BatchSizes.constant(36), skips) == together[-1] + 1


class Row(list):
    """Stands in for a batch."""

    target_counts = (0, 0, 0)


class Numbers:
    """Stands in for a dataset: a sample is its index."""

    def samples(self, indices):
        return indices.tolist()


def steps_of(skips, *, start=0, steps, rank=0, dp_size=1, prefetch=0):
    loader = StepLoader(
        Numbers(),
        Row,
        consumed_samples=start,
        global_batch_size=RAMP,
        micro_batch_size=3,
        dp_rank=rank,
        dp_size=dp_size,
        prefetch=prefetch,
        skips=skips,
    )
    with loader:
        made = [next(loader) for _ in range(steps)]
    return [(step.first_sample, sorted(i for row in step.micro_batches for i in row)) for step in made]


@settings(max_examples=40, deadline=None)
@given(ranges=some_ranges, dp_size=st.sampled_from([1, 2, 4]), prefetch=st.integers(0, 2), at=st.integers(0, 7))
def test_a_resume_at_any_step_under_another_layout_has_the_same_steps(ranges, dp_size, prefetch, at):
    skips = SkipList.of(ranges)
    whole = steps_of(skips, steps=8)
    assert [i for _, step in whole for i in step] == skips.take(0, sum(len(step) for _, step in whole)).tolist()
    start = whole[at][0]
    ranks = [
        steps_of(skips, start=start, steps=8 - at, rank=rank, dp_size=dp_size, prefetch=prefetch)
        for rank in range(dp_size)
    ]
    for number, (first, samples) in enumerate(whole[at:]):
        assert {rank[number][0] for rank in ranks} == {first}
        assert sorted(i for rank in ranks for i in rank[number][1]) == samples


@pytest.mark.parametrize("passed", [[(0, 24)], [(0, 5), (20, 24)]])
def test_a_range_that_is_behind_the_run_changes_nothing(passed):
    assert steps_of(SkipList.of(passed), start=24, steps=3) == steps_of(SkipList(), start=24, steps=3)

"""The loader: the same samples for any layout and from any place on, errors included."""

import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_glm.config.batching import BatchSizes
from megatron_glm.data.loader import StepLoader, evaluation_batches, step_indices
from megatron_glm.objective.sample import Objective

GLOBAL = 48
layouts = st.sampled_from([(dp, micro) for dp in (1, 2, 3, 4, 6) for micro in (1, 2, 4)])


@dataclass
class Row:
    """Stands in for a batch: its samples, one target each."""

    samples: list

    @property
    def target_counts(self):
        return (len(self.samples), 0, 0)


class Numbers:
    """Stands in for a dataset: a sample is its index."""

    def __init__(self, delay=0.0, fails_at=None):
        self.asked = []
        self.threads = set()
        self._delay = delay
        self._fails_at = fails_at

    def samples(self, indices):
        self.threads.add(threading.current_thread().name)
        self.asked.append(int(indices[0]))
        time.sleep(self._delay)
        if self._fails_at in indices:
            raise OSError(f"cannot read sample {self._fails_at}")
        return indices.tolist()


class Windows:
    """Stands in for a held-out dataset."""

    def __init__(self, num_windows):
        self.num_windows = num_windows

    def sample(self, objective, window):
        assert 0 <= window < self.num_windows
        return (objective, window)


def make_loader(dataset, consumed=0, dp=(0, 1), micro=4, prefetch=2, size=GLOBAL):
    return StepLoader(
        dataset,
        Row,
        consumed_samples=consumed,
        global_batch_size=size,
        micro_batch_size=micro,
        dp_rank=dp[0],
        dp_size=dp[1],
        prefetch=prefetch,
    )


def take(loader, steps):
    with loader:
        return [[row.samples for row in next(loader).micro_batches] for _ in range(steps)]


@given(layout=layouts, first=st.integers(0, 2**61))
def test_the_replicas_together_have_the_step_s_samples(layout, first):
    dp_size, micro = layout
    shares = [step_indices(first, GLOBAL, rank, dp_size, micro) for rank in range(dp_size)]
    assert all(share.shape == (GLOBAL // dp_size // micro, micro) for share in shares)
    together = np.sort(np.concatenate(shares, axis=None))
    assert together.tolist() == list(range(first, first + GLOBAL))


@settings(max_examples=20, deadline=None)
@given(layout=layouts, prefetch=st.integers(0, 3))
def test_each_step_has_the_same_samples_in_any_layout(layout, prefetch):
    dp_size, micro = layout
    ranks = [take(make_loader(Numbers(), 0, (rank, dp_size), micro, prefetch), 3) for rank in range(dp_size)]
    for step in range(3):
        together = sorted(i for rank in ranks for row in rank[step] for i in row)
        assert together == list(range(step * GLOBAL, (step + 1) * GLOBAL))


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_resume_at_any_step_goes_on_as_if_nothing_had_happened(prefetch):
    whole = take(make_loader(Numbers(), prefetch=prefetch), 6)
    for step in range(6):
        assert take(make_loader(Numbers(), step * GLOBAL, prefetch=prefetch), 6 - step) == whole[step:]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(("dp", "micro"), [(1, 4), (2, 2), (4, 1)])
def test_batches_that_grow_are_resumed_under_any_layout(dp, micro, prefetch):
    sizes = BatchSizes(final=12, start=4, increment=4, ramp_samples=16)
    starts = [0, 4, 8, 16, 28, 40]
    for first in range(5):
        ranks = [
            take(make_loader(Numbers(), starts[first], (r, dp), micro, prefetch, sizes), 5 - first) for r in range(dp)
        ]
        for step in range(5 - first):
            together = sorted(i for rank in ranks for row in rank[step] for i in row)
            assert together == list(range(starts[first + step], starts[first + step + 1]))


def test_a_step_says_where_it_starts_and_how_many_targets_it_has():
    with make_loader(Numbers(), consumed=5, dp=(1, 2)) as loader:
        steps = [next(loader), next(loader)]
    assert [step.first_sample for step in steps] == [5, 5 + GLOBAL]
    assert [step.target_counts for step in steps] == [(GLOBAL // 2, 0, 0)] * 2


def test_the_thread_prepares_prefetch_steps_ahead_and_no_more():
    dataset = Numbers()
    with make_loader(dataset, prefetch=2) as loader:
        next(loader)
        deadline = time.monotonic() + 5
        while len(dataset.asked) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert dataset.asked == [0, GLOBAL, 2 * GLOBAL]
    assert threading.current_thread().name not in dataset.threads


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_are_pinned_where_asked(prefetch):
    class PinnedRow(Row):
        def pin_memory(self):
            return ("pinned", self.samples)

    with StepLoader(
        Numbers(),
        PinnedRow,
        consumed_samples=0,
        global_batch_size=GLOBAL,
        micro_batch_size=GLOBAL,
        dp_rank=0,
        dp_size=1,
        prefetch=prefetch,
        pin_memory=True,
    ) as loader:
        assert next(loader).micro_batches == (("pinned", list(range(GLOBAL))),)


def test_without_prefetch_there_is_no_thread():
    dataset = Numbers()
    take(make_loader(dataset, prefetch=0), 2)
    assert dataset.threads == {threading.current_thread().name}
    assert dataset.asked == [0, GLOBAL]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_is_raised_where_its_step_is_asked_for_and_again_after(prefetch):
    with make_loader(Numbers(fails_at=GLOBAL + 3), prefetch=prefetch) as loader:
        assert next(loader).first_sample == 0
        for _ in range(2):
            with pytest.raises(OSError, match=f"cannot read sample {GLOBAL + 3}"):
                next(loader)


def test_closing_ends_the_thread():
    before = threading.active_count()
    loader = make_loader(Numbers(delay=0.01), prefetch=3)
    assert threading.active_count() == before + 1
    loader.close()
    loader.close()
    assert threading.active_count() == before


def test_the_wait_is_measured():
    with make_loader(Numbers(delay=0.05), prefetch=0) as loader:
        next(loader)
        assert 0.05 <= loader.wait_seconds < 1
    with make_loader(Numbers(delay=0.05), prefetch=1) as loader:
        time.sleep(0.5)
        next(loader)
        assert loader.wait_seconds < 0.05


def test_global_generators_are_left_alone():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    take(make_loader(Numbers()), 3)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ((GLOBAL, 0, 5, 1), "global batch 48 is not a multiple of 5 replicas × micro-batch 1"),
        ((GLOBAL, 0, 2, 5), "global batch 48 is not a multiple of 2 replicas × micro-batch 5"),
        ((GLOBAL, 2, 2, 1), r"dp_rank 2 lies outside range\(2\)"),
    ],
)
def test_refuses_a_layout_that_does_not_divide(layout, message):
    with pytest.raises(ValueError, match=message):
        step_indices(0, *layout)


@given(windows=st.integers(1, 40), dp_size=st.integers(1, 5), micro=st.integers(1, 6))
def test_the_replicas_together_evaluate_each_window_once_in_equally_many_batches(windows, dp_size, micro):
    shares = [
        list(
            evaluation_batches(
                Windows(windows),
                Objective.SENTENCE,
                Row,
                dp_rank=rank,
                dp_size=dp_size,
                micro_batch_size=micro,
            )
        )
        for rank in range(dp_size)
    ]
    assert len({len(share) for share in shares}) == 1
    assert all(len(row.samples) <= micro for share in shares for row in share)
    together = sorted(sample for share in shares for row in share for sample in row.samples)
    assert together == [(Objective.SENTENCE, window) for window in range(windows)]

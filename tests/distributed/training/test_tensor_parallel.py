"""Checkpoints know nothing of tensor parallelism; that gradients do not either is shown by test_matrix.py."""

from functools import cache

import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases

pytestmark = pytest.mark.distributed


def slow(*layout):
    return pytest.param(layout, marks=pytest.mark.slow)


STEPS = 4


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """For (processes, tensor, stage), once: a run of 2 × STEPS, and its first half."""

    @cache
    def get(processes, tensor, stage):
        directory = tmp_path_factory.mktemp("runs")
        settings = cases.config(stage=stage, micro=2, tensor=tensor, sequence=tensor > 1)
        whole = run_ranks(processes, cases.run_and_save, settings, str(directory / "whole"), 2 * STEPS)[0]
        half = run_ranks(processes, cases.run_and_save, settings, str(directory / "half"), STEPS)[0]
        return whole, half

    return get


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, 1, 0), (2, 2, 1)),
        ((2, 2, 0), (2, 2, 3)),
        ((4, 2, 1), (1, 1, 0)),
        pytest.param((4, 2, 3), (4, 4, 2), marks=pytest.mark.slow),
        pytest.param((4, 2, 2), (4, 2, 2), marks=pytest.mark.slow),
        pytest.param((2, 1, 3), (4, 2, 3), marks=pytest.mark.slow),
    ],
)
def test_training_goes_on_under_another_layout(saved, tmp_path, before, after):
    whole, half = saved(*before)
    processes, tensor, stage = after
    settings = cases.config(stage=stage, micro=2, tensor=tensor, sequence=tensor > 1)
    resumed = run_ranks(processes, cases.run_and_save, settings, str(tmp_path), STEPS, half["path"])[0]
    assert resumed["loss"] == pytest.approx(whole["loss"][STEPS:], rel=1e-5)


@pytest.mark.parametrize("layout", [(2, 2, 0), (4, 2, 1), slow(4, 2, 2), slow(4, 2, 3), slow(4, 4, 1)])
def test_a_checkpoint_of_shards_holds_every_value_once(saved, tmp_path, layout):
    """Loaded and saved again by one process, it is the same to the bit."""
    half = saved(*layout)[1]
    again = run_ranks(1, cases.run_and_save, cases.config(stage=0, micro=2), str(tmp_path), 0, half["path"])[0]
    assert cases.hashes(again) == cases.hashes(half)

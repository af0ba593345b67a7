"""A checkpoint holds everything: training goes on from it as if it had never stopped, under any ZeRO stage."""

from pathlib import Path

import pytest

from megatron_glm.checkpoint.reading import CheckpointReader
from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases

pytestmark = pytest.mark.distributed

STEPS = 3


def hashes(result):
    return CheckpointReader(Path(result["path"])).parameter_hashes()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """For a stage, once: the run of 2 × STEPS with two processes, and its first half."""
    runs = {}

    def get(stage, precision="fp32"):
        if (stage, precision) not in runs:
            directory = tmp_path_factory.mktemp(f"stage{stage}")
            settings = cases.config(stage=stage, micro=2, precision=precision)
            whole = run_ranks(2, cases.run_and_save, settings, str(directory / "whole"), 2 * STEPS)[0]
            half = run_ranks(2, cases.run_and_save, settings, str(directory / "half"), STEPS)[0]
            runs[stage, precision] = whole, half
        return runs[stage, precision]

    return get


@pytest.mark.parametrize(
    ("stage", "precision"), [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16")]
)
def test_every_weight_and_moment_is_the_same_after_a_resume(interrupted, tmp_path, stage, precision):
    whole, half = interrupted(stage, precision)
    settings = cases.config(stage=stage, micro=2, precision=precision)
    resumed = run_ranks(2, cases.run_and_save, settings, str(tmp_path), STEPS, half["path"])[0]
    assert resumed["loss"] == whole["loss"][STEPS:]
    assert hashes(resumed) == hashes(whole)


@pytest.mark.parametrize(
    ("saved_stage", "stage", "processes"),
    [(1, 0, 1), (1, 0, 2), (1, 1, 1), (1, 2, 1), (1, 2, 2), (1, 3, 1), (1, 3, 2), (3, 0, 1), (3, 1, 2), (3, 2, 1)],
)
def test_training_goes_on_under_another_layout(interrupted, tmp_path, saved_stage, stage, processes):
    whole, half = interrupted(saved_stage)
    settings = cases.config(stage=stage, micro=4)
    resumed = run_ranks(processes, cases.run_and_save, settings, str(tmp_path), STEPS, half["path"])[0]
    assert resumed["loss"] == pytest.approx(whole["loss"][STEPS:], rel=1e-5)


def test_weights_and_moments_are_read_back_bit_for_bit_under_another_layout(interrupted, tmp_path):
    _, half = interrupted(1)
    reloaded = run_ranks(1, cases.run_and_save, cases.config(stage=3, micro=4), str(tmp_path), 0, half["path"])[0]
    assert hashes(reloaded) == hashes(half)

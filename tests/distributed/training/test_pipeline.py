"""A pipeline changes nothing: neither the gradients nor a checkpoint know of its stages.

Compared with one process as test_matrix.py does, over stages, tensor and sequence parallelism, replicas,
accumulation, ZeRO stages and recomputation.
"""

from functools import cache

import numpy as np
import pytest
import torch

from megatron_glm.parallel.cuts import Shard
from megatron_glm.parallel.layout import Layout
from megatron_glm.planning.stages import pipeline_stages
from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases

pytestmark = pytest.mark.distributed

STEPS = 4
LAYERS = 4


def config(**changes):
    return cases.config(layers=LAYERS, **changes)


@pytest.fixture(scope="module")
def one_process():
    return run_ranks(1, cases.run_steps, config(stage=0, micro=8), STEPS)[0]


def names_of(stage, stages):
    """The parameters that a stage holds, by name."""
    held = [f"transformer.layers.{number}." for number in stages[stage]]
    if stage == 0:
        held += ["word_embeddings.", "transformer.position_embeddings.", "transformer.block_position_embeddings."]
    if stage == len(stages) - 1:
        held += ["word_embeddings.", "transformer.final_layernorm."]
    return tuple(held)


def check_equal(reference, processes, settings):
    parallel = settings.parallel
    layout = Layout.of(processes, tensor=parallel.tensor, pipeline=parallel.pipeline)
    stages = pipeline_stages(settings, cases.NUM_IDS)
    for rank, result in enumerate(run_ranks(processes, cases.run_steps, settings, STEPS)):
        place = layout.coordinates(rank)
        assert result["loss"] == pytest.approx(reference["loss"], rel=1e-5)
        assert result["norm"] == pytest.approx(reference["norm"], rel=1e-5)
        held = {name for name in reference["gradients"] if name.startswith(names_of(place.pipeline, stages))}
        assert result["gradients"].keys() == held
        for name in held:
            whole = reference["gradients"][name]
            shard = Shard.of(name, rank=place.tensor, size=parallel.tensor)
            part = shard.take(torch.from_numpy(whole)).numpy()
            error = np.abs(result["gradients"][name] - part).max() / np.abs(whole).max()
            assert error < 5e-6, f"{name} on rank {rank}: {error:.1e}"


def rest(*values):
    """A case for `make test-all`."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("processes", "stage", "micro", "recompute"),
    [
        (2, 0, 2, "full"),
        (2, 1, 4, "none"),
        (4, 1, 1, "full"),
        rest(2, 0, 8, "none"),
        rest(2, 1, 2, "none"),
        rest(4, 0, 2, "none"),
        rest(4, 0, 4, "none"),
        rest(4, 1, 4, "none"),
    ],
)
def test_two_stages_are_one_process(one_process, processes, stage, micro, recompute):
    check_equal(one_process, processes, config(stage=stage, micro=micro, pipeline=2, recompute=recompute))


@pytest.mark.parametrize(
    ("stage", "micro", "sequence", "recompute"),
    [(1, 4, True, "none"), rest(0, 8, False, "none"), rest(0, 2, True, "full"), rest(1, 2, False, "full")],
)
def test_two_stages_of_two_ranks_that_share_each_layer_are_one_process(one_process, stage, micro, sequence, recompute):
    settings = config(stage=stage, micro=micro, pipeline=2, tensor=2, sequence=sequence, recompute=recompute)
    check_equal(one_process, 4, settings)


@pytest.mark.parametrize(
    ("processes", "stages", "stage", "micro"), [(3, 3, 0, 4), rest(3, 3, 1, 2), rest(4, 4, 0, 1), rest(4, 4, 1, 8)]
)
def test_stages_between_the_first_and_the_last_are_one_process(one_process, processes, stages, stage, micro):
    check_equal(one_process, processes, config(stage=stage, micro=micro, pipeline=stages))


@pytest.mark.parametrize("lengths", [(1, 3), rest((3, 1))])
def test_any_division_of_the_layers_is_one_process(one_process, lengths):
    one = config(stage=0, micro=4, pipeline=2)
    parallel = one.parallel.model_copy(update={"stage_layers": lengths})
    check_equal(one_process, 2, one.model_copy(update={"parallel": parallel}))


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "micro"), [(0, 2), (1, 1)])
def test_tensor_pipeline_and_data_parallelism_together_are_one_process(one_process, stage, micro):
    check_equal(one_process, 8, config(stage=stage, micro=micro, pipeline=2, tensor=2, sequence=True))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1])
def test_the_first_and_the_last_stage_keep_one_word_table(stage):
    """With more than two replicas, whose gradients are not added in the same order on both stages."""
    tables = run_ranks(8, cases.word_table, config(stage=stage, micro=1, pipeline=2), STEPS)
    assert len(set(tables)) == 1


@pytest.mark.parametrize(("processes", "tensor"), [(2, 1), rest(4, 1), rest(4, 2)])
def test_bf16_follows_fp32_within_its_precision(one_process, processes, tensor):
    settings = config(stage=1, micro=2, precision="bf16", pipeline=2, tensor=tensor, sequence=tensor > 1)
    for rank, result in enumerate(run_ranks(processes, cases.run_steps, settings, STEPS)):
        for name, gradient in result["gradients"].items():
            whole = one_process["gradients"][name]
            part = Shard.of(name, rank=rank % tensor, size=tensor).take(torch.from_numpy(whole)).numpy()
            assert np.abs(gradient - part).max() / np.abs(whole).max() < 0.05, name
        assert result["loss"] == pytest.approx(one_process["loss"], rel=1e-3)
        assert result["norm"] == pytest.approx(one_process["norm"], rel=2e-2)


@pytest.mark.parametrize(("processes", "tensor"), [(2, 1), rest(4, 1), rest(4, 2)])
def test_evaluation_is_exact_for_any_number_of_batches(processes, tensor):
    """None, one, more than pass together; other numbers on other replicas; between steps of training."""
    numbers = [[0, 3], [1, 0], [16, 16], [5, 2]]
    settings = config(stage=1, micro=1, pipeline=2, tensor=tensor, sequence=tensor > 1)
    wanted = {
        replica: run_ranks(1, cases.run_evaluations, config(stage=0, micro=1), [[n[replica]] for n in numbers])[0]
        for replica in range(processes // 2 // tensor)
    }
    layout = Layout.of(processes, tensor=tensor, pipeline=2)
    for rank, found in enumerate(run_ranks(processes, cases.run_evaluations, settings, numbers)):
        expected = wanted[layout.coordinates(rank).data]
        for (sums, targets), (expected_sums, expected_targets) in zip(found, expected, strict=True):
            assert sums == pytest.approx(expected_sums, rel=1e-5)
            assert targets == expected_targets


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """For (processes, pipeline, tensor, stage), once: a run of 2 × STEPS, and its first half."""

    @cache
    def get(*layout):
        directory = tmp_path_factory.mktemp("runs")
        processes, settings = layout[0], settings_of(layout)
        whole = run_ranks(processes, cases.run_and_save, settings, str(directory / "whole"), 2 * STEPS)[0]
        half = run_ranks(processes, cases.run_and_save, settings, str(directory / "half"), STEPS)[0]
        return whole, half

    return get


def settings_of(layout):
    _, pipeline, tensor, stage = layout
    return config(stage=stage, micro=2, pipeline=pipeline, tensor=tensor, sequence=tensor > 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, 2, 1, 1), (1, 1, 1, 0)),
        ((2, 1, 1, 3), (2, 2, 1, 1)),
        rest((4, 2, 2, 0), (2, 1, 2, 3)),
        rest((2, 1, 2, 2), (4, 4, 1, 1)),
        rest((4, 2, 1, 1), (3, 3, 1, 0)),
        rest((4, 2, 2, 1), (4, 2, 2, 1)),
    ],
)
def test_training_goes_on_under_another_layout(saved, tmp_path, before, after):
    whole, half = saved(*before)
    resumed = run_ranks(after[0], cases.run_and_save, settings_of(after), str(tmp_path), STEPS, half["path"])[0]
    assert resumed["loss"] == pytest.approx(whole["loss"][STEPS:], rel=1e-5)


@pytest.mark.parametrize(
    "layout", [(2, 2, 1, 1), rest((4, 2, 2, 0)), rest((4, 2, 2, 1)), rest((4, 2, 1, 1)), rest((3, 3, 1, 0))]
)
def test_a_checkpoint_of_stages_holds_every_value_once(saved, tmp_path, layout):
    """Loaded and saved again by one process, and by the stages again, it is the same to the bit."""
    half = saved(*layout)[1]
    for number, other in enumerate([(1, 1, 1, 0), layout]):
        directory = str(tmp_path / str(number))
        again = run_ranks(other[0], cases.run_and_save, settings_of(other), directory, 0, half["path"])[0]
        assert cases.hashes(again) == cases.hashes(half)

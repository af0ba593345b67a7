"""Where the division of a pipeline comes from: the only one, the one asked for, the checkpoint's, or a measurement."""

from types import SimpleNamespace

import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.parallel.layout import Coordinates
from megatron_glm.parallel.ranks import SingleProcess
from megatron_glm.training.engines import stage_division
from megatron_glm.training.engines.stage_division import divide, saved_stages, stage_bounds

SAVED = [[0, 1], [1, 6]]


@pytest.fixture
def measured(monkeypatch):
    """Stands in for the measurement: an output layer that costs three layers. The rows that were made for it."""
    asked = []

    def costs(config, num_ids, batches, *, groups, ranks):
        asked.extend(batches)
        return (1.0, 1.0, 1.0, 1.0, 1.0, 3.0)

    monkeypatch.setattr(stage_division, "measured_costs", costs)
    return asked


def division(saved=None, replica=0, **parallel):
    config = config_from_tree(
        {
            "model": {"num_layers": 6, "hidden_size": 8, "num_attention_heads": 1},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "-"}]},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 1, "global_batch_size": 8, "micro_batch_size": 2},
            "parallel": parallel,
        }
    )
    groups = SimpleNamespace(place=Coordinates(replica, 0, 0))
    return divide(config, 9, list, tuple, groups=groups, ranks=SingleProcess(), saved=saved)


def test_by_default_layers_are_measured_on_rows_of_the_run(measured):
    found = division(pipeline=2)
    assert found.stages == (range(4), range(4, 6))
    assert found.reason == "by measured times, first 1e+03, inner 1e+03, last 3e+03 ms a micro-batch"
    assert measured == [(2 * k, 2 * k + 1) for k in range(8)]


def test_each_replica_measures_other_samples(measured):
    division(pipeline=2, replica=1)
    assert measured[0] == (16, 17)


def test_a_resume_keeps_the_stages_of_its_checkpoint(measured):
    assert division(SAVED, pipeline=2).stages == (range(1), range(1, 6))
    assert measured == []


def test_but_not_where_there_are_more_of_them_or_others_are_asked_for(measured):
    assert len(division(SAVED, pipeline=3).stages) == 3
    assert division(SAVED, pipeline=2, stage_layers=[2, 4]).stages == (range(2), range(2, 6))
    assert division(SAVED, pipeline=2, stage_costs="counted").reason == "by counted multiply-adds"


@pytest.mark.parametrize("stages", [1, 6])
def test_nothing_is_measured_where_there_is_one_division_only(measured, stages):
    assert division(pipeline=stages).reason == "the only division"
    assert measured == []


def test_a_checkpoint_tells_its_stages(tmp_path):
    assert stage_bounds(division(pipeline=2, stage_layers=[1, 5]).stages) == SAVED
    assert saved_stages(None) is None

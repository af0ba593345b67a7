"""What a pipeline's stages are before anything is measured."""

import pytest

from megatron_glm.config.combinations import check_combinations
from megatron_glm.config.loading import config_from_tree
from megatron_glm.errors import ConfigError
from megatron_glm.planning.stages import pipeline_stages


def config(layers=6, **parallel):
    return config_from_tree(
        {
            "model": {"num_layers": layers, "hidden_size": 64, "num_attention_heads": 1},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "-"}]},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 1, "global_batch_size": 8, "micro_batch_size": 2},
            "parallel": parallel,
        }
    )


def test_they_are_those_asked_for():
    assert pipeline_stages(config(pipeline=3, stage_layers=[3, 1, 2]), 1000) == (range(3), range(3, 4), range(4, 6))


def test_else_the_more_words_the_fewer_layers_has_the_last_stage():
    lengths = [len(pipeline_stages(config(pipeline=2), num_ids)[-1]) for num_ids in (128, 4000, 30_000)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


@pytest.mark.parametrize(("stages", "wanted"), [(2, [3, 2]), (2, [2, 2, 2]), (3, [3, 3]), (1, [5])])
def test_stages_that_are_not_all_layers_are_refused(stages, wanted):
    check_combinations(config(pipeline=2, stage_layers=[1, 5]))
    with pytest.raises(ConfigError, match=r"stage_layers: \[.*\] are \d layers in \d stages, but .* each stage"):
        check_combinations(config(pipeline=stages, stage_layers=wanted))

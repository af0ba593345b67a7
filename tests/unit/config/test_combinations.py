"""What does not go together is refused, with the nearest that does."""

import pytest

from megatron_glm.config.combinations import check_combinations
from megatron_glm.config.loading import config_from_tree
from megatron_glm.errors import ConfigError


def config(layers=4, **parallel):
    return config_from_tree(
        {
            "model": {"num_layers": layers, "hidden_size": 8, "num_attention_heads": 1},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "-"}]},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 1, "global_batch_size": 8, "micro_batch_size": 2},
            "parallel": parallel,
        }
    )


@pytest.mark.parametrize("stage", [2, 3])
def test_a_pipeline_goes_with_zero_0_and_1_only(stage):
    check_combinations(config(zero_stage=stage))
    for possible in (0, 1):
        check_combinations(config(zero_stage=possible, pipeline=2))
    with pytest.raises(ConfigError, match=f"zero_stage: {stage} with .* use parallel.zero_stage=1"):
        check_combinations(config(zero_stage=stage, pipeline=2))


def test_a_stage_has_a_layer():
    check_combinations(config(layers=4, pipeline=4))
    with pytest.raises(ConfigError, match=r"parallel\.pipeline: 5 stages for model\.num_layers 4.* at most 4"):
        check_combinations(config(layers=4, pipeline=5))


@pytest.mark.parametrize(
    ("parallel", "train", "fix"),
    [
        ({"zero_stage": 0}, {}, "use parallel.zero_stage=1"),
        ({"pipeline": 2}, {}, "parallel.pipeline=1 alone"),
        ({"zero_stage": 1}, {"precision": "bf16"}, "use parallel.zero_stage=2"),
    ],
)
def test_an_offloaded_optimizer_is_refused_where_it_would_not_be_right(parallel, train, fix):
    wanted = config(**parallel)
    wanted = wanted.model_copy(update={"train": wanted.train.model_copy(update=train)})
    check_combinations(wanted)
    offloaded = wanted.parallel.model_copy(update={"offload_optimizer": "cpu"})
    with pytest.raises(ConfigError, match=f"offload_optimizer: cpu.* {fix}"):
        check_combinations(wanted.model_copy(update={"parallel": offloaded}))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_offloaded_optimizer_goes_with_zero_1_to_3(stage):
    check_combinations(config(zero_stage=stage, offload_optimizer="cpu"))


@pytest.mark.parametrize("fused", ["apex", "auto"])
def test_an_offloaded_optimizer_is_not_apex_s(fused):
    wanted = config(offload_optimizer="cpu")
    wanted = wanted.model_copy(update={"optimizer": wanted.optimizer.model_copy(update={"fused": fused})})
    with pytest.raises(ConfigError, match=rf"optimizer\.fused {fused}: .* use optimizer\.fused=torch"):
        check_combinations(wanted)

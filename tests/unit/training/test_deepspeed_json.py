"""The DeepSpeed configuration follows from ours, and experts have the last word."""

import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.errors import ConfigError
from megatron_glm.training.deepspeed_json import deepspeed_json, merge


def config(stage=1, precision="fp32", **sections):
    return config_from_tree(
        {
            "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "-"}]},
            "optimizer": {"learning_rate": 1e-3, "gradient_clipping": 0.7},
            "train": {
                "output": "-",
                "steps": 1,
                "global_batch_size": 8,
                "micro_batch_size": 2,
                "precision": precision,
            },
            "parallel": {"zero_stage": stage},
        }
        | sections
    )


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_clipping_is_done_in_one_place_only(stage):
    tree = deepspeed_json(config(stage), accumulation=2, num_parameters=10)
    assert tree["gradient_clipping"] == (0.7 if stage else 0.0)
    assert tree["zero_optimization"]["stage"] == stage
    assert tree["zero_optimization"]["overlap_comm"] is False
    assert (tree["train_micro_batch_size_per_gpu"], tree["gradient_accumulation_steps"]) == (2, 2)


def test_bf16_at_stage_1_accumulates_in_fp32():
    assert deepspeed_json(config(1, "bf16"), accumulation=1, num_parameters=1)["data_types"] == {
        "grad_accum_dtype": "fp32"
    }


def test_bf16_without_master_weights_is_refused_with_the_nearest_possible_stage():
    with pytest.raises(ConfigError, match=r"parallel\.zero_stage: 0 .* use parallel\.zero_stage=1"):
        deepspeed_json(config(0, "bf16"), accumulation=1, num_parameters=1)


def test_the_expert_section_comes_last():
    tree = deepspeed_json(
        config(2, deepspeed={"zero_optimization": {"reduce_bucket_size": 5}, "x": 1}), accumulation=1, num_parameters=9
    )
    assert tree["zero_optimization"]["reduce_bucket_size"] == 5
    assert tree["zero_optimization"]["stage"] == 2
    assert tree["x"] == 1


@pytest.mark.parametrize(
    ("expert", "message"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps: is decided by train.global_batch_size"),
        ({"gradient_clipping": 0.1}, "gradient_clipping: is decided by optimizer.gradient_clipping"),
        ({"fp16": {"enabled": True}}, "fp16: is decided by train.precision"),
        ({"zero_optimization": {"stage": 3}}, "zero_optimization.stage: is decided by parallel.zero_stage"),
    ],
)
def test_the_expert_section_cannot_contradict_the_others(expert, message):
    with pytest.raises(ConfigError, match=f"deepspeed.{message}.*; set it there"):
        deepspeed_json(config(2, deepspeed=expert), accumulation=1, num_parameters=9)


def test_merging_changes_neither_side():
    base, changes = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge(base, changes) == {"a": {"b": 1, "c": 2}}
    assert (base, changes) == ({"a": {"b": 1}}, {"a": {"c": 2}})

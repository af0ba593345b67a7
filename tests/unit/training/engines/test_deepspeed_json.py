"""The DeepSpeed configuration follows from ours, and experts have the last word."""

import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.training.engines.deepspeed_json import deepspeed_json, merge


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


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_of_low_precision_are_summed_and_averaged_in_fp32(precision, stage):
    tree = deepspeed_json(config(stage, precision), accumulation=1, num_parameters=1)
    assert tree["data_types"] == {"grad_accum_dtype": "fp32"}
    assert tree["communication_data_type"] == "fp32"


def test_fp16_has_the_loss_scale_of_our_settings_and_each_overflow_halves_it():
    tree = deepspeed_json(config(1, "fp16"), accumulation=1, num_parameters=1)
    assert tree["fp16"] == {
        "enabled": True,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "min_loss_scale": 1,
        "hysteresis": 1,
    }


def test_an_offloaded_optimizer_is_torch_s():
    offloaded = config(parallel={"zero_stage": 2, "offload_optimizer": "cpu"})
    tree = deepspeed_json(offloaded, accumulation=1, num_parameters=1)
    assert tree["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert tree["zero_force_ds_cpu_optimizer"] is False


def test_a_pipeline_sends_hidden_states_as_they_are():
    """By default DeepSpeed takes those of a tensor group for copies, and puts spread tokens together wrongly."""
    tree = deepspeed_json(config(parallel={"zero_stage": 1, "pipeline": 2}), accumulation=1, num_parameters=1)
    assert tree["pipeline"] == {"pipe_partitioned": False, "grad_partitioned": False}


def test_the_expert_section_comes_last():
    tree = deepspeed_json(
        config(2, deepspeed={"zero_optimization": {"reduce_bucket_size": 5}, "x": 1}), accumulation=1, num_parameters=9
    )
    assert tree["zero_optimization"]["reduce_bucket_size"] == 5
    assert tree["zero_optimization"]["stage"] == 2
    assert tree["x"] == 1


def test_merging_changes_neither_side():
    base, changes = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge(base, changes) == {"a": {"b": 1, "c": 2}}
    assert (base, changes) == ({"a": {"b": 1}}, {"a": {"c": 2}})

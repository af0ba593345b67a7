"""What DeepSpeed's own section may not say, as other sections decide it."""

import pytest

from megatron_glm.config.deepspeed_section import check_deepspeed_section
from megatron_glm.errors import ConfigError


@pytest.mark.parametrize(
    ("expert", "message"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps: is decided by train.global_batch_size"),
        ({"gradient_clipping": 0.1}, "gradient_clipping: is decided by optimizer.gradient_clipping"),
        ({"managed_gradient_accumulation": False}, "managed_gradient_accumulation: is decided by train.global_batch_s"),
        ({"fp16": {"enabled": True}}, "fp16: is decided by train.precision"),
        ({"bfloat16": {"enabled": True}}, "bfloat16: is decided by train.precision"),
        ({"torch_autocast": {"enabled": True}}, "torch_autocast: is decided by train.precision"),
        ({"pipeline": {"pipe_partitioned": True}}, "pipeline: is decided by parallel.pipeline and train.recompute"),
        ({"zero_optimization": {"stage": 3}}, "zero_optimization.stage: is decided by parallel.zero_stage"),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}},
            "zero_optimization.offload_optimizer.device: is decided by parallel.offload_optimizer",
        ),
    ],
)
def test_it_cannot_contradict_the_others(expert, message):
    with pytest.raises(ConfigError, match=f"deepspeed.{message}.*; set it there"):
        check_deepspeed_section(expert, zero_stage=1)


def test_what_would_spoil_checkpoints_is_refused():
    check_deepspeed_section({"zero_optimization": {"round_robin_gradients": False}}, zero_stage=1)
    with pytest.raises(ConfigError, match=r"zero_optimization\.round_robin_gradients: true .*; leave it out"):
        check_deepspeed_section({"zero_optimization": {"round_robin_gradients": True}}, zero_stage=1)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_what_waits_for_ever_is_refused(stage):
    section = {"zero_optimization": {"zero_hpz_partition_size": 2}}
    check_deepspeed_section(section, zero_stage=3)
    with pytest.raises(ConfigError, match=r"zero_hpz_partition_size: 2 is for ZeRO 3.*set parallel\.zero_stage: 3"):
        check_deepspeed_section(section, zero_stage=stage)


def test_the_rest_is_the_expert_s():
    check_deepspeed_section({}, zero_stage=1)
    for zero in ({"reduce_bucket_size": 5}, {"offload_optimizer": {"pin_memory": True}}):
        check_deepspeed_section({"zero_optimization": zero, "communication_data_type": "bf16"}, zero_stage=1)

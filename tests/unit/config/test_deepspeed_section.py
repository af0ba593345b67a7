"""What DeepSpeed's own section may not say, as other sections decide it."""

import pytest

from megatron_glm.config.deepspeed_section import check_deepspeed_section
from megatron_glm.errors import ConfigError


@pytest.mark.parametrize(
    ("expert", "message"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps: is decided by train.global_batch_size"),
        ({"gradient_clipping": 0.1}, "gradient_clipping: is decided by optimizer.gradient_clipping"),
        ({"fp16": {"enabled": True}}, "fp16: is decided by train.precision"),
        ({"pipeline": {"pipe_partitioned": True}}, "pipeline: is decided by parallel.pipeline and train.recompute"),
        ({"zero_optimization": {"stage": 3}}, "zero_optimization.stage: is decided by parallel.zero_stage"),
    ],
)
def test_it_cannot_contradict_the_others(expert, message):
    with pytest.raises(ConfigError, match=f"deepspeed.{message}.*; set it there"):
        check_deepspeed_section(expert)


def test_the_rest_is_the_expert_s():
    check_deepspeed_section({})
    check_deepspeed_section({"zero_optimization": {"reduce_bucket_size": 5}, "communication_data_type": "bf16"})

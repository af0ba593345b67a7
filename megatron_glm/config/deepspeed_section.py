"""What the section for DeepSpeed's experts may not say, because other sections decide it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron_glm.errors import ConfigError

# Set beside our own sections, DeepSpeed and the engine around it would disagree, and the loss would be wrong without
# a word.
_OURS = {
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_accumulation_steps": "train.global_batch_size and train.micro_batch_size",
    "managed_gradient_accumulation": "train.global_batch_size and train.micro_batch_size",
    "gradient_clipping": "optimizer.gradient_clipping",
    "optimizer": "the section optimizer",
    "scheduler": "the section schedule",
    "bf16": "train.precision",
    "bfloat16": "train.precision",  # an older name, which DeepSpeed still reads
    "torch_autocast": "train.precision",
    "fp16": "train.precision",
    "pipeline": "parallel.pipeline and train.recompute",
}


def check_deepspeed_section(expert: Mapping[str, Any], *, zero_stage: int) -> None:
    """Raises ConfigError for a key that another section decides, with the place to set it, or that spoils a run."""
    for key in expert:
        if key in _OURS:
            raise ConfigError(f"deepspeed.{key}: is decided by {_OURS[key]}; set it there")
    zero = expert.get("zero_optimization")
    if not isinstance(zero, dict):
        return
    if "stage" in zero:
        raise ConfigError("deepspeed.zero_optimization.stage: is decided by parallel.zero_stage; set it there")
    if zero.get("round_robin_gradients"):
        raise ConfigError(
            "deepspeed.zero_optimization.round_robin_gradients: true makes DeepSpeed 0.19.8 tell a wrong place of each"
            " fp32 weight, so that checkpoints would hold other parameters' values; leave it out"
        )
    if zero_stage < 3 and (size := zero.get("zero_hpz_partition_size", 1)) != 1:
        raise ConfigError(
            f"deepspeed.zero_optimization.zero_hpz_partition_size: {size} is for ZeRO 3, under another stage DeepSpeed"
            " 0.19.8 waits for ever; set parallel.zero_stage: 3 or leave it out"
        )
    offload = zero.get("offload_optimizer")
    if isinstance(offload, dict) and "device" in offload:
        raise ConfigError(
            "deepspeed.zero_optimization.offload_optimizer.device: is decided by parallel.offload_optimizer;"
            " set it there"
        )

"""The DeepSpeed configuration of a run, generated from ours and merged with the expert section last."""

from __future__ import annotations

from typing import Any

from megatron_glm.config.schema import Config
from megatron_glm.errors import ConfigError

_BUCKET_ELEMENTS = 50_000_000
_NEVER = 2**62

# What our own sections decide. Set beside them, DeepSpeed and the engine around it would disagree,
# and the loss would be wrong without a word.
_OURS = {
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_accumulation_steps": "train.global_batch_size and train.micro_batch_size",
    "gradient_clipping": "optimizer.gradient_clipping",
    "optimizer": "the section optimizer",
    "scheduler": "the section schedule",
    "bf16": "train.precision",
    "fp16": "train.precision",
    "pipeline": "parallel.pipeline and train.recompute",
}


def deepspeed_json(config: Config, *, accumulation: int, num_parameters: int) -> dict[str, Any]:
    """What deepspeed.initialize is given.

    What each mode accumulates gradients in: fp32 runs in fp32; bf16 at stage 1 in fp32; bf16 at
    stages 2 and 3 in bf16; fp16 in fp16, scaled.

    Raises:
        ConfigError: a combination that DeepSpeed does not implement, with the nearest possible one; a
            setting in the expert section that another section decides.
    """
    _refuse_ours(config.deepspeed)
    stage, precision = config.parallel.zero_stage, config.train.precision
    if precision != "fp32" and stage == 0:
        raise ConfigError(
            f"parallel.zero_stage: 0 with train.precision {precision} would sum gradients in {precision} without an"
            " fp32 master copy; use parallel.zero_stage=1"
        )
    bucket = max(1, min(_BUCKET_ELEMENTS, num_parameters))
    tree: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": config.train.micro_batch_size,
        "gradient_accumulation_steps": accumulation,
        # Stage 0 in fp32 clips without telling the norm: our engine does both itself.
        "gradient_clipping": config.optimizer.gradient_clipping if stage else 0.0,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": False,  # several releases raced here and gave wrong gradients
            "contiguous_gradients": True,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
        },
        "steps_per_print": _NEVER,
        "wall_clock_breakdown": False,
    }
    if config.parallel.pipeline > 1:
        # By default it takes hidden states for copies of each other on tensor-parallel ranks, sends a part of
        # each and puts them together: with sequence parallelism they are none, and tokens would change places.
        tree["pipeline"] = {"pipe_partitioned": False, "grad_partitioned": False}
    if config.parallel.offload_optimizer == "cpu":
        tree["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
        tree["zero_force_ds_cpu_optimizer"] = False  # it would want one that is compiled at the start
    if precision == "fp16":
        scale = config.train.loss_scale
        tree["fp16"] = {
            "enabled": True,
            "initial_scale_power": scale.initial_power,
            "loss_scale_window": scale.window,
            "min_loss_scale": scale.floor,
            "hysteresis": 1,  # every overflow halves the scale
        }
    if precision == "bf16":
        tree["bf16"] = {"enabled": True}
        if stage == 1:
            tree["data_types"] = {"grad_accum_dtype": "fp32"}
    return merge(tree, config.deepspeed)


def _refuse_ours(expert: dict[str, Any]) -> None:
    for key in expert:
        if key in _OURS:
            raise ConfigError(f"deepspeed.{key}: is decided by {_OURS[key]}; set it there")
    zero = expert.get("zero_optimization")
    if isinstance(zero, dict) and "stage" in zero:
        raise ConfigError("deepspeed.zero_optimization.stage: is decided by parallel.zero_stage; set it there")


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, section by section."""
    merged = dict(base)
    for key, value in changes.items():
        inner = merged.get(key)
        merged[key] = merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged

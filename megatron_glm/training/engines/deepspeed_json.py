"""The DeepSpeed configuration of a run, generated from ours and merged with the expert section last."""

from __future__ import annotations

from typing import Any

from megatron_glm.config.schema import Config

_BUCKET_ELEMENTS = 50_000_000
_NEVER = 2**62


def deepspeed_json(config: Config, *, accumulation: int, num_parameters: int) -> dict[str, Any]:
    """What deepspeed.initialize is given.

    Gradients are accumulated over micro-batches and averaged over replicas in fp32, whatever the precision.
    """
    stage, precision = config.parallel.zero_stage, config.train.precision
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
        # Without it stage 2 would update with gradients that are not finite, which all other stages leave out.
        tree["bf16"] = {"enabled": True, "check_grad_overflow": True}
    if precision != "fp32":
        # By default both are in the training precision: a sum of many bf16 gradients loses the small ones, and would
        # depend on how many micro-batches and replicas it is taken over.
        tree["data_types"] = {"grad_accum_dtype": "fp32"}
        tree["communication_data_type"] = "fp32"
    return merge(tree, config.deepspeed)


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, section by section."""
    merged = dict(base)
    for key, value in changes.items():
        inner = merged.get(key)
        merged[key] = merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged

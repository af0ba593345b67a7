"""Which parallelisms go together, known before any process has met another."""

from __future__ import annotations

from megatron_glm.config.schema import Config
from megatron_glm.errors import ConfigError


def check_combinations(config: Config) -> None:
    """See that a pipeline and an offloaded optimizer go with the rest of the configuration.

    Raises:
        ConfigError: one does not; with the nearest that does.
    """
    if config.parallel.offload_optimizer != "none":
        _check_offload(config)
    stages, layers = config.parallel.pipeline, config.model.num_layers
    if stages == 1:
        return
    if stages > layers:
        raise ConfigError(
            f"parallel.pipeline: {stages} stages for model.num_layers {layers}, and each has a layer; "
            f"set at most {layers}"
        )
    if (stage := config.parallel.zero_stage) > 1:
        raise ConfigError(
            f"parallel.zero_stage: {stage} with parallel.pipeline {stages} would partition gradients that every "
            "micro-batch still adds to; use parallel.zero_stage=1, or parallel.pipeline=1"
        )


def _check_offload(config: Config) -> None:
    stage, stages, setting = config.parallel.zero_stage, config.parallel.pipeline, "parallel.offload_optimizer: cpu"
    if stage == 0:
        raise ConfigError(f"{setting} needs an optimizer that is partitioned; use parallel.zero_stage=1")
    if stages > 1:
        raise ConfigError(f"{setting} with parallel.pipeline {stages}; allowed with parallel.pipeline=1 alone")
    if config.train.precision == "bf16" and stage == 1:
        raise ConfigError(
            f"{setting} with train.precision bf16 at parallel.zero_stage 1 would sum gradients in bf16;"
            " use parallel.zero_stage=2, which does so in any case, or none"
        )
    if (fused := config.optimizer.fused) != "torch":
        raise ConfigError(f"{setting} with optimizer.fused {fused}: apex updates on a GPU; use optimizer.fused=torch")

"""Which settings go together, known before any process has met another."""

from __future__ import annotations

from megatron_glm.config.deepspeed_section import check_deepspeed_section
from megatron_glm.config.schema import Config
from megatron_glm.errors import ConfigError


def check_combinations(config: Config) -> None:
    """See that precision, parallelisms, offloading and DeepSpeed's own section go together.

    Raises:
        ConfigError: one does not go with the rest; with the nearest that does.
    """
    check_deepspeed_section(config.deepspeed, zero_stage=config.parallel.zero_stage)
    _check_precision(config)
    check_heads(config)
    if config.model.vocab_size is not None:  # else the tokenizer must be read first
        check_words(config, config.model.vocab_size)
    _check_attention(config)
    _check_apex(config)
    if config.parallel.offload_optimizer != "none":
        _check_offload(config)
    stages, layers = config.parallel.pipeline, config.model.num_layers
    _check_stage_layers(config.parallel.stage_layers, stages, layers)
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


def _check_precision(config: Config) -> None:
    if (precision := config.train.precision) != "fp32" and config.parallel.zero_stage == 0:
        raise ConfigError(
            f"parallel.zero_stage: 0 with train.precision {precision} would sum gradients in {precision} without an"
            " fp32 master copy; use parallel.zero_stage=1"
        )


def check_heads(config: Config) -> None:
    """See that the ranks of a layer share its heads. Raises ConfigError."""
    tensor, heads = config.parallel.tensor, config.model.num_attention_heads
    if heads % tensor:
        fits = [size for size in range(1, heads + 1) if heads % size == 0]
        raise ConfigError(
            f"parallel.tensor: {tensor} does not divide model.num_attention_heads {heads}; allowed: {fits}"
        )


def check_words(config: Config, rows: int) -> None:
    """See that the ranks of a layer share the rows of the word table. Raises ConfigError."""
    if rows % (tensor := config.parallel.tensor):
        raise ConfigError(
            f"parallel.tensor: {tensor} does not divide the {rows} rows of the word table; "
            f"set model.vocab_size to {-(-rows // tensor) * tensor}"
        )


def _check_apex(config: Config) -> None:
    if config.optimizer.fused == "apex" and config.parallel.zero_stage == 3:
        raise ConfigError(
            "optimizer.fused: apex with parallel.zero_stage 3, where DeepSpeed updates the parameters part by part and"
            " apex takes each part for an update of all; use optimizer.fused=torch, or parallel.zero_stage=2"
        )


def _check_attention(config: Config) -> None:
    backend, model = config.train.attention_backend, config.model
    if backend in ("flash-varlen", "flex", "sdpa") and model.attention_dropout:
        raise ConfigError(
            f"train.attention_backend: {backend} has no keyed dropout, and model.attention_dropout is"
            f" {model.attention_dropout}; use auto, triton, segments or reference, or model.attention_dropout=0"
        )
    features = model.hidden_size // model.num_attention_heads
    if backend == "triton" and features > 128:
        raise ConfigError(
            f"train.attention_backend: triton has heads of up to 128 features, and"
            f" model.hidden_size / model.num_attention_heads is {features}; use auto"
        )


def _check_stage_layers(wanted: tuple[int, ...] | None, stages: int, layers: int) -> None:
    if wanted and (len(wanted) != stages or sum(wanted) != layers):
        raise ConfigError(
            f"parallel.stage_layers: {list(wanted)} are {sum(wanted)} layers in {len(wanted)} stages, but"
            f" model.num_layers is {layers} and parallel.pipeline {stages}; give one number for each stage"
        )


def _check_offload(config: Config) -> None:
    stage, stages, setting = config.parallel.zero_stage, config.parallel.pipeline, "parallel.offload_optimizer: cpu"
    if stage == 0:
        raise ConfigError(f"{setting} needs an optimizer that is partitioned; use parallel.zero_stage=1")
    if stages > 1:
        raise ConfigError(f"{setting} with parallel.pipeline {stages}; allowed with parallel.pipeline=1 alone")
    if (fused := config.optimizer.fused) != "torch":
        raise ConfigError(f"{setting} with optimizer.fused {fused}: apex updates on a GPU; use optimizer.fused=torch")

"""How large a model is, known from its configuration alone: no torch is imported here."""

from __future__ import annotations

from math import prod

from megatron_glm.config.schema import Model
from megatron_glm.errors import ConfigError

VOCAB_MULTIPLE = 128
WORD_TABLE = "word_embeddings.weight"  # the first stage of a pipeline reads it, and the last one too


def padded_vocab_size(config: Model, num_ids: int) -> int:
    """Rows of the word table for a tokenizer of num_ids ids, the same under every layout.

    Raises:
        ConfigError: an explicit model.vocab_size does not hold the ids.
    """
    if config.vocab_size is None:
        return -(-num_ids // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    if config.vocab_size < num_ids:
        raise ConfigError(
            f"model.vocab_size: {config.vocab_size} rows do not hold the tokenizer's {num_ids} ids; "
            f"leave it out or set at least {num_ids}"
        )
    return config.vocab_size


def parameter_shapes(config: Model, num_ids: int) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter under its name in the original release, in the model's order."""
    h = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        WORD_TABLE: (padded_vocab_size(config, num_ids), h),
        "transformer.position_embeddings.weight": (config.max_positions + 1, h),
        "transformer.block_position_embeddings.weight": (config.max_positions + 1, h),
    }
    for layer in range(config.num_layers):
        for name, shape in _layer_shapes(h).items():
            shapes[f"transformer.layers.{layer}.{name}"] = shape
    shapes["transformer.final_layernorm.weight"] = (h,)
    shapes["transformer.final_layernorm.bias"] = (h,)
    return shapes


def parameter_count(config: Model, num_ids: int) -> int:
    """Parameters of the model, the padded rows of the word table included."""
    return sum(prod(shape) for shape in parameter_shapes(config, num_ids).values())


def _layer_shapes(h: int) -> dict[str, tuple[int, ...]]:
    return {
        "input_layernorm.weight": (h,),
        "input_layernorm.bias": (h,),
        "attention.query_key_value.weight": (3 * h, h),
        "attention.query_key_value.bias": (3 * h,),
        "attention.dense.weight": (h, h),
        "attention.dense.bias": (h,),
        "post_attention_layernorm.weight": (h,),
        "post_attention_layernorm.bias": (h,),
        "mlp.dense_h_to_4h.weight": (4 * h, h),
        "mlp.dense_h_to_4h.bias": (4 * h,),
        "mlp.dense_4h_to_h.weight": (h, 4 * h),
        "mlp.dense_4h_to_h.bias": (h,),
    }

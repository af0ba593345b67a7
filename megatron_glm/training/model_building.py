"""From a configuration to this rank's part of the model."""

from __future__ import annotations

from functools import partial

from megatron_glm.config.schema import Config
from megatron_glm.errors import ConfigError
from megatron_glm.model.costs import layer_costs
from megatron_glm.model.glm import GLM
from megatron_glm.model.sizes import padded_vocab_size
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.sharding import shard_model
from megatron_glm.parallel.stages import balanced_stages


def check_divides(config: Config, num_ids: int) -> None:
    """See that parallel.tensor ranks can share a layer evenly.

    Raises:
        ConfigError: the heads or the rows of the word table do not divide.
    """
    tensor, heads = config.parallel.tensor, config.model.num_attention_heads
    if heads % tensor:
        fits = [size for size in range(1, heads + 1) if heads % size == 0]
        raise ConfigError(
            f"parallel.tensor: {tensor} does not divide model.num_attention_heads {heads}; allowed: {fits}"
        )
    if (rows := padded_vocab_size(config.model, num_ids)) % tensor:
        raise ConfigError(
            f"parallel.tensor: {tensor} does not divide the {rows} rows of the word table; "
            f"set model.vocab_size to {-(-rows // tensor) * tensor}"
        )


def pipeline_stages(config: Config, num_ids: int) -> tuple[range, ...]:
    """The layers of each stage of the pipeline."""
    costs = layer_costs(config.model, config.objective, window=config.data.window, num_ids=num_ids)
    return balanced_stages(costs, config.parallel.pipeline)


def build_model(config: Config, num_ids: int, groups: Groups) -> GLM:
    """A freshly initialised model, or this rank's shard of its stage; the values do not depend on the layout."""
    shard = None
    if groups.layout.tensor > 1:
        shard = partial(
            shard_model,
            group=groups.tensor,
            heads=config.model.num_attention_heads,
            spread=config.parallel.sequence,
        )
    return GLM(
        config.model,
        num_ids=num_ids,
        seed=config.train.seed,
        recompute=config.train.recompute,
        shard=shard,
        layers=pipeline_stages(config, num_ids)[groups.place.pipeline],
    )

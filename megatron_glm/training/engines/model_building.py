"""From a configuration to this rank's part of the model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from megatron_glm.config.combinations import check_words
from megatron_glm.config.schema import Config
from megatron_glm.model.glm import GLM
from megatron_glm.model.sizes import padded_vocab_size
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.sharding import shard_model
from megatron_glm.training.engines.compiled_parts import compile_parts, is_compiled
from megatron_glm.training.engines.fused_norm import fuse_norms


def check_divides(config: Config, num_ids: int) -> None:
    """See that parallel.tensor ranks can share the words evenly; check_combinations has seen to the heads.

    Raises:
        ConfigError: the rows of the word table do not divide.
    """
    check_words(config, padded_vocab_size(config.model, num_ids))


def build_model(config: Config, num_ids: int, groups: Groups, stages: Sequence[range]) -> GLM:
    """A freshly initialised model, or this rank's shard of its stage; the values do not depend on the layout."""
    return build_layers(config, num_ids, groups, stages[groups.place.pipeline], seed=config.train.seed)


def build_layers(config: Config, num_ids: int, groups: Groups, layers: range, *, seed: int | None) -> GLM:
    """This rank's shard of some layers, with what belongs to the ends; seed None leaves the values unset."""
    shard = None
    if groups.layout.tensor > 1:
        shard = partial(
            shard_model,
            group=groups.tensor,
            heads=config.model.num_attention_heads,
            spread=config.parallel.sequence,
        )
    glm = GLM(
        config.model,
        num_ids=num_ids,
        seed=seed,
        recompute=config.train.recompute,
        shard=shard,
        layers=layers,
        attention_backend=config.train.attention_backend,
    )
    fuse_norms(glm, config.train)
    if is_compiled(config.train):
        compile_parts(glm)
    return glm

"""Put the parallel layers into a model: the one place that knows which module becomes which.

The model is given as it is built, on the meta device, so that no rank ever holds more than its part.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor, nn

from megatron_glm.parallel.cuts import Shard
from megatron_glm.parallel.linear import ColumnParallelLinear, RowParallelLinear, SpreadLayerNorm
from megatron_glm.parallel.placement import ShardedPlacement

_COLUMN, _ROW, _NORM = ("query_key_value", "dense_h_to_4h"), ("dense", "dense_4h_to_h"), "layernorm"
# What runs after the last layer has attended: on the targets alone, which every rank has whole.
_AT_TARGETS = ("attention.dense", "post_attention_layernorm", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")


def shard_model(
    model: nn.Module, *, group: dist.ProcessGroup, heads: int, spread: bool
) -> tuple[ShardedPlacement, Callable[[str, Tensor], Tensor]]:
    """Replace the modules of a GLM by this rank's part of them, in place.

    Args:
        model: on the meta device, with the module names of the original release; of a pipeline's stage the modules
            that it lacks are None.
        group: the ranks that share each layer; their number divides the heads and the rows of the word table.
        heads: of a layer, over all ranks.
        spread: tokens are divided over the ranks between the layers.

    Returns:
        The placement, and a function of (name, whole parameter) that gives this rank's part.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    last = f"layers.{len(model.transformer.layers) - 1}."
    for name, module in list(model.named_modules()):
        at_targets = last in name and name.endswith(_AT_TARGETS)
        replacement = _parallel(name, module, group, size, spread and not at_targets)
        if replacement is not None:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, replacement)
    if (words := model.word_embeddings) is not None:
        model.word_embeddings = nn.Embedding(words.num_embeddings // size, words.embedding_dim)
    placement = ShardedPlacement(group, heads=heads, spread=spread)
    return placement, lambda name, whole: Shard.of(name, rank=rank, size=size).take(whole)


def _parallel(name: str, module: nn.Module, group: dist.ProcessGroup, size: int, spread: bool) -> nn.Module | None:
    child = name.rpartition(".")[2]
    if child in _COLUMN:
        return ColumnParallelLinear(module.in_features, module.out_features // size, group=group, spread=spread)
    if child in _ROW:
        return RowParallelLinear(module.in_features // size, module.out_features, group=group, spread=spread)
    if child.endswith(_NORM) and spread and child != "final_layernorm":
        return SpreadLayerNorm(module.normalized_shape[0], eps=module.eps, group=group)
    return None

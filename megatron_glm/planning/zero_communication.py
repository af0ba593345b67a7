"""What DeepSpeed's ZeRO sends over the replicas, stage by stage, and for the gradient norm.

As DeepSpeed 0.19.8 was seen to do it: stages 1 and 2 all-reduce the gradients, though each rank goes on with its
partition only. Stage 2 does so after every micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from megatron_glm.config.schema import Config
from megatron_glm.model.decay import decayed_names
from megatron_glm.model.sizes import WORD_TABLE, parameter_shapes
from megatron_glm.parallel.cuts import Shard
from megatron_glm.parallel.layout import Layout
from megatron_glm.planning.messages import Messages, element_size, gradient_size

_ALIGNMENT = 2  # elements a rank, to which DeepSpeed pads the partitions of stages 1 and 2
# Its defaults under stage 3: smaller parameters stay whole on every rank; a model of more elements is gathered anew
# for the backward pass.
_PERSISTENT, _REUSED = 100_000, 1_000_000_000


def zero_messages(config: Config, layout: Layout, *, num_ids: int, layers: range, micro_batches: int) -> list[Messages]:
    """Gradients, and weights after the update, of the parameters that this process has."""
    stage = config.parallel.zero_stage
    elements = local_elements(config, layout, num_ids=num_ids, layers=layers)
    size = element_size(config)
    if stage == 3:
        return _partitioned_messages(config, layout, elements, size, micro_batches)
    reductions = micro_batches if stage == 2 else 1
    gradients = sum(elements.values()) * gradient_size(config)
    messages = [Messages("all_reduce", "data", gradients, reductions, is_divided=True)]
    if stage:
        decayed = decayed_names(elements)
        groups = ([elements[name] for name in decayed], [elements[name] for name in elements.keys() - decayed])
        messages += [
            Messages("all_gather", "data", _padded(sum(group), _ALIGNMENT * layout.data) * size) for group in groups
        ]
    return messages


def norm_messages(config: Config, layout: Layout) -> list[Messages]:
    """The few bytes that the gradient norm takes, and the search for an overflow."""
    stage, precision = config.parallel.zero_stage, config.train.precision
    if stage == 0:
        return [Messages("all_reduce", "tensor", 8), Messages("all_reduce", "pipeline", 16)]
    if stage == 1 and precision == "bf16":
        return [Messages("all_reduce", "model", 4)]
    size = 8 if stage == 3 and config.parallel.offload_optimizer == "none" else 4
    looks = {"fp16": (1, 2, 3), "bf16": (2,), "fp32": ()}[precision]  # the stages that look for an overflow
    messages = []
    for axis in ("data", "model"):
        messages.append(Messages("all_reduce", axis, size, 2))
        if stage in looks:
            messages.append(Messages("all_reduce", axis, 1))
    return messages


def local_elements(config: Config, layout: Layout, *, num_ids: int, layers: range) -> dict[str, int]:
    """Elements of each parameter that a process with these layers has, or of its shard; no ZeRO."""
    shapes = parameter_shapes(config.model, num_ids)
    held = _names(shapes, config.model.num_layers, layers)
    return {name: prod(Shard.of(name, rank=0, size=layout.tensor).shape(shapes[name])) for name in held}


def _names(names: Iterable[str], num_layers: int, layers: range) -> list[str]:
    is_first, is_last = 0 in layers, num_layers - 1 in layers

    def is_held(name: str) -> bool:
        if ".layers." in name:
            return int(name.split(".")[2]) in layers
        if name == WORD_TABLE:
            return is_first or is_last
        return is_last if "final_layernorm" in name else is_first

    return [name for name in names if is_held(name)]


def _partitioned_messages(
    config: Config, layout: Layout, elements: dict[str, int], size: int, micro_batches: int
) -> list[Messages]:
    """Stage 3: the weights are gathered for every micro-batch, and each gradient is scattered after it."""
    section = config.deepspeed.get("zero_optimization", {})
    threshold = section.get("stage3_param_persistence_threshold", _PERSISTENT)
    padded = {name: _padded(count, layout.data) for name, count in elements.items()}
    persistent = [padded[name] for name, count in elements.items() if count <= threshold]
    fetched = sum(padded.values()) - sum(persistent)
    passes = 2 if sum(elements.values()) > section.get("stage3_max_reuse_distance", _REUSED) else 1
    return [
        Messages("all_gather", "data", fetched * size, passes * micro_batches, is_divided=True),
        Messages(
            "reduce_scatter", "data", sum(padded.values()) * gradient_size(config), micro_batches, is_divided=True
        ),
        *(Messages("all_gather", "data", count * size) for count in persistent),
    ]


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple

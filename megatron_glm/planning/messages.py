"""What one process exchanges with others, as numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from megatron_glm.config.schema import Config
from megatron_glm.parallel.layout import Layout

# model: the ranks of one replica, over which a norm is taken; world: all ranks
Axis = Literal["tensor", "data", "pipeline", "model", "world"]
Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "receive"]


@dataclass(frozen=True)
class Messages:
    """Equal messages of one process in a step.

    Attributes:
        size: bytes of the whole value of each: what is reduced, or gathered, or scattered.
        is_divided: DeepSpeed sends them in portions of its own choice; only number × size is known.
    """

    kind: Kind
    axis: Axis
    size: int
    number: int = 1
    is_divided: bool = False


def element_size(config: Config) -> int:
    """Bytes of an activation, of its gradient, or of a weight that the forward pass reads."""
    return 4 if config.train.precision == "fp32" else 2


def gradient_size(config: Config) -> int:
    """Bytes of a parameter's gradient on its way between replicas: fp32, if an expert does not ask for less."""
    return 4 if config.deepspeed.get("communication_data_type", "fp32") == "fp32" else 2


def axis_sizes(layout: Layout) -> dict[Axis, int]:
    """The ranks of a group of each axis."""
    return {
        "tensor": layout.tensor,
        "data": layout.data,
        "pipeline": layout.pipeline,
        "model": layout.tensor * layout.pipeline,
        "world": layout.processes,
    }


def bytes_sent(messages: Iterable[Messages], layout: Layout) -> dict[str, float]:
    """What leaves one process over tensor, data and pipeline groups, in bytes, by rings.

    An all-reduce is a scatter and a gather. What concerns a whole replica goes over its stages, where it has any,
    and what concerns all ranks over the replicas, where there are several.
    """
    sizes, sent = axis_sizes(layout), {"tensor": 0.0, "data": 0.0, "pipeline": 0.0}
    for message in messages:
        ring = (sizes[message.axis] - 1) / sizes[message.axis]
        share = {"all_reduce": 2 * ring, "send": 1.0, "broadcast": 1.0, "receive": 0.0}.get(message.kind, ring)
        whole_replica = "pipeline" if layout.pipeline > 1 else "tensor"
        everywhere = "data" if layout.data > 1 else whole_replica
        axis = {"model": whole_replica, "world": everywhere}.get(message.axis, message.axis)
        sent[axis] += share * message.size * message.number
    return sent

"""What reaches the process groups: the kind, group and size of every collective of a block.

A dispatch mode sees each operation below all Python wrappers, so nothing that DeepSpeed sends is missed.
"""

from __future__ import annotations

from collections import Counter

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from megatron_glm.parallel.groups import Groups

# The operation of c10d -> its name here, and the argument whose bytes are counted: the whole value, never a part.
_KINDS = {
    "allreduce_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "reduce_": ("reduce", 0),
    "broadcast_": ("broadcast", 0),
    "send": ("send", 0),
    "recv_": ("receive", 0),
    "barrier": ("barrier", 0),
}


class Recorder(TorchDispatchMode):
    """Records the collectives of this process over groups of more than one rank.

    Attributes:
        found: (kind, axis, bytes of the whole value) -> how often.
    """

    def __init__(self, groups: Groups):
        super().__init__()
        place, layout = groups.place, groups.layout
        model = tuple(rank for rank in range(layout.processes) if layout.coordinates(rank).data == place.data)
        # DeepSpeed makes groups of its own; they are known by their ranks. Of equal ones the last name holds.
        self._axes: dict[tuple[int, ...], str] = {tuple(range(layout.processes)): "world", model: "model"}
        for name, group in (
            ("pipeline", groups.ends),
            ("pipeline", groups.pipeline),
            ("data", groups.data),
            ("tensor", groups.tensor),
        ):
            if group is not None:
                self._axes[tuple(dist.get_process_group_ranks(group))] = name
        self.found: Counter[tuple[str, str, int]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self._record(func._schema.name.removeprefix("c10d::"), args)
        return func(*args, **(kwargs or {}))

    def _record(self, operation: str, args: tuple) -> None:
        group = next(found for arg in args if (found := _group(arg)) is not None)
        ranks = tuple(dist.get_process_group_ranks(group))
        if len(ranks) > 1:
            kind, place = _KINDS[operation]
            # Only stages send to each other; the group they do it in is the whole job.
            axis = "pipeline" if kind in ("send", "receive") else self._axes.get(ranks, f"ranks {ranks}")
            self.found[kind, axis, _bytes(args[place])] += 1


def _group(arg: object) -> dist.ProcessGroup | None:
    if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
        return dist.ProcessGroup.unbox(arg)
    return None


def _bytes(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(_bytes(one) for one in value)

"""The process groups of a layout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch.distributed as dist

from megatron_glm.parallel.layout import Coordinates, Layout


@dataclass(frozen=True)
class Groups:
    """This process's place in a layout, and the group of each axis that it belongs to.

    Attributes:
        ends: the first and the last stage of this process's pipeline; None for a stage between them, and without
            a pipeline.
    """

    layout: Layout
    place: Coordinates
    data: dist.ProcessGroup
    pipeline: dist.ProcessGroup
    tensor: dist.ProcessGroup
    ends: dist.ProcessGroup | None


def make_groups(layout: Layout) -> Groups:
    """Make all groups of a layout; every process of the job calls it, once."""
    rank = dist.get_rank()
    return Groups(
        layout,
        layout.coordinates(rank),
        data=_own_group(layout.data_groups(), rank),
        pipeline=_own_group(layout.pipeline_groups(), rank),
        tensor=_own_group(layout.tensor_groups(), rank),
        ends=_own_group(layout.end_groups(), rank),
    )


def _own_group(groups: Iterable[list[int]], rank: int) -> dist.ProcessGroup | None:
    # Making a group is a collective of the whole job: all ranks make all of them, in the same order.
    made = [(ranks, dist.new_group(ranks)) for ranks in groups]
    return next((group for ranks, group in made if rank in ranks), None)

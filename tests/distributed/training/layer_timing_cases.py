"""The measurement of layers in all ranks of a layout."""

from __future__ import annotations

from megatron_glm.config.schema import Config
from megatron_glm.parallel.groups import make_groups
from megatron_glm.parallel.layout import Layout
from megatron_glm.training.engines.layer_timing import measured_costs
from megatron_glm.training.processes import distributed_processes
from tests.distributed.training import cases


def costs(settings: list[tuple[Config, int]]) -> list[tuple[float, ...]]:
    """For each configuration and number of ids."""
    found = []
    with distributed_processes(threads=1) as ranks:
        for config, num_ids in settings:
            parallel = config.parallel
            groups = make_groups(Layout.of(ranks.size, tensor=parallel.tensor, pipeline=parallel.pipeline))
            batches = cases.batches(config, step=0, rank=groups.place.data, size=groups.layout.data)
            found.append(measured_costs(config, num_ids, batches, groups=groups, ranks=ranks))
    return found

"""Which layers each stage of a pipeline has, from the configuration alone: no torch is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from megatron_glm.config.schema import Config
from megatron_glm.model.costs import layer_costs
from megatron_glm.parallel.stages import balanced_stages


@dataclass(frozen=True)
class Division:
    """The layers of each stage, and how they were found, in words."""

    stages: tuple[range, ...]
    reason: str


def pipeline_stages(config: Config, num_ids: int) -> tuple[range, ...]:
    """The layers of each stage: those asked for, else by counted costs, as long as nothing has been measured."""
    if config.parallel.stage_layers:
        return tuple(range(*ends) for ends in pairwise((0, *accumulate(config.parallel.stage_layers))))
    costs = layer_costs(config.model, config.objective, window=config.data.window, num_ids=num_ids)
    return balanced_stages(costs, config.parallel.pipeline)

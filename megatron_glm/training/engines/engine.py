"""Which engine runs a layout, and what it asks of the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from megatron_glm.config.phases import run_phases
from megatron_glm.config.schema import Config
from megatron_glm.parallel.groups import Groups
from megatron_glm.training.engines.model_building import build_model
from megatron_glm.training.engines.pipeline_engine import PipelineEngine
from megatron_glm.training.engines.zero_engine import ZeroEngine

Engine = ZeroEngine | PipelineEngine

_ROW_MULTIPLE = 64


def build_engine(config: Config, num_ids: int, *, groups: Groups, accumulation: int, stages: Sequence[range]) -> Engine:
    """The engine around this rank's part of a freshly initialised model.

    Args:
        num_ids: ids of the tokenizer.
        accumulation: micro-batches of one replica in a step.
        stages: the layers of each stage of the pipeline.
    """
    kind = PipelineEngine if groups.layout.pipeline > 1 else ZeroEngine
    return kind(config, build_model(config, num_ids, groups, stages), groups=groups, accumulation=accumulation)


def row_capacity(config: Config) -> int | None:
    """Tokens of every row of a pipeline, which sends hidden states of one size; None without one.

    A micro-batch of the largest samples of any phase fits, and tensor-parallel ranks can divide it.
    """
    if config.parallel.pipeline == 1:
        return None
    largest = max(phase.settings.window + 2 * phase.settings.objective.max_spans for phase in run_phases(config))
    multiple = math.lcm(_ROW_MULTIPLE, config.parallel.tensor)
    return math.ceil(config.train.micro_batch_size * largest / multiple) * multiple

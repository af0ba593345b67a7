"""Which engine runs a layout."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_glm.config.schema import Config
from megatron_glm.parallel.groups import Groups
from megatron_glm.training.engines.model_building import build_model
from megatron_glm.training.engines.pipeline_engine import PipelineEngine
from megatron_glm.training.engines.zero_engine import ZeroEngine

Engine = ZeroEngine | PipelineEngine


def build_engine(config: Config, num_ids: int, *, groups: Groups, accumulation: int, stages: Sequence[range]) -> Engine:
    """The engine around this rank's part of a freshly initialised model.

    Args:
        num_ids: ids of the tokenizer.
        accumulation: micro-batches of one replica in a step.
        stages: the layers of each stage of the pipeline.
    """
    kind = PipelineEngine if groups.layout.pipeline > 1 else ZeroEngine
    return kind(config, build_model(config, num_ids, groups, stages), groups=groups, accumulation=accumulation)

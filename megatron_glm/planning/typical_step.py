"""What a step of a run sends, before it is known which samples it has."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_glm.config.schema import Config
from megatron_glm.model.costs import target_share
from megatron_glm.parallel.layout import Layout
from megatron_glm.planning.communication import RowSize, step_messages
from megatron_glm.planning.messages import bytes_sent


def sent_per_step(
    config: Config, layout: Layout, *, num_ids: int, accumulation: int, stages: Sequence[range]
) -> dict[str, float]:
    """Bytes that a process sends over each axis in a step of full windows, on the stage that sends most there.

    Args:
        accumulation: micro-batches of a replica.
        stages: the layers of each stage of the pipeline.
    """
    tokens = config.train.micro_batch_size * config.data.window
    rows = [RowSize(tokens, round(tokens * target_share(config.objective)))] * accumulation
    most: dict[str, float] = {}
    for stage, layers in enumerate(stages):
        messages = step_messages(config, layout, num_ids=num_ids, stage=stage, layers=layers, rows=rows)
        for axis, size in bytes_sent(messages, layout).items():
            most[axis] = max(size, most.get(axis, 0.0))
    return most

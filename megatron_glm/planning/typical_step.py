"""What a step of a run sends, before it is known which samples it has."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_glm.config.schema import Config
from megatron_glm.parallel.layout import Layout
from megatron_glm.planning.communication import step_messages
from megatron_glm.planning.messages import bytes_sent
from megatron_glm.planning.rows import typical_row


def sent_per_step(
    config: Config, layout: Layout, *, num_ids: int, accumulation: int, stages: Sequence[range]
) -> dict[str, float]:
    """Bytes that a process sends over each axis in a step of full windows, on the stage that sends most there.

    Args:
        accumulation: micro-batches of a replica.
        stages: the layers of each stage of the pipeline.
    """
    rows = [typical_row(config)] * accumulation
    most: dict[str, float] = {}
    for stage, layers in enumerate(stages):
        messages = step_messages(config, layout, num_ids=num_ids, stage=stage, layers=layers, rows=rows)
        for axis, size in bytes_sent(messages, layout).items():
            most[axis] = max(size, most.get(axis, 0.0))
    return most

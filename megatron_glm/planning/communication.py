"""What the processes of a layout send each other in a step, from the configuration alone.

docs/parallelism.md has the same in a table; tests/distributed/training/test_communication.py counts what is
really sent and compares. No torch is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_glm.config.schema import Config
from megatron_glm.model.sizes import padded_vocab_size
from megatron_glm.parallel.layout import Layout
from megatron_glm.planning.messages import Messages, axis_sizes, element_size
from megatron_glm.planning.zero_communication import norm_messages, zero_messages

_EXACT = 4  # bytes of an fp32 number
_COUNTS = 7 * 8  # targets by objective, tokens and yielded tokens; wishes to stop and news: int64
_SUMS = 3 * 8  # summed nll by objective, fp64


@dataclass(frozen=True)
class RowSize:
    """A micro-batch: T tokens with padding, of which N are targets."""

    tokens: int
    targets: int


def step_messages(
    config: Config, layout: Layout, *, num_ids: int, stage: int, layers: range, rows: Sequence[RowSize]
) -> list[Messages]:
    """All messages of one process in a training step, after the first; those within one process are left out.

    Args:
        stage: of the pipeline, 0 <= stage < layout.pipeline.
        layers: of this stage.
        rows: the step's micro-batches of this replica.
    """
    messages = [
        *(message for row in rows for message in _tensor_messages(config, layers, row)),
        *(message for row in rows for message in _pipeline_messages(config, layout, stage, row)),
        *_tied_table(config, layout, num_ids, stage),
        *_exact_loss(layout),
        *zero_messages(config, layout, num_ids=num_ids, layers=layers, micro_batches=len(rows)),
        *norm_messages(config, layout),
    ]
    sizes = axis_sizes(layout)
    return [message for message in messages if sizes[message.axis] > 1]


def _tensor_messages(config: Config, layers: range, row: RowSize) -> list[Messages]:
    """Those of the layers, the embeddings and the loss of one micro-batch."""
    features = config.model.hidden_size * element_size(config)
    whole, targets = row.tokens * features, row.targets * features
    is_first, is_last = 0 in layers, config.model.num_layers - 1 in layers
    inner = len(layers) - is_last  # layers that go on with all tokens
    again = 2 if config.train.recompute == "full" else 1  # forward passes
    messages = []
    if config.parallel.sequence:
        gathers = inner * (2 * again + 2) + is_last * 2 * again + is_first
        scatters = inner * (2 * again + 2) + is_last + is_first
        messages += [
            Messages("all_gather", "tensor", whole, gathers),
            Messages("reduce_scatter", "tensor", whole, scatters),
            Messages("all_reduce", "tensor", 2 * features, 2 * inner + is_last),  # a norm's weight and bias
            Messages("all_reduce", "tensor", features, 2 * inner),  # the biases of dense and dense_4h_to_h
            Messages("all_reduce", "tensor", 2 * (config.model.max_positions + 1) * features, is_first),
        ]
    else:
        reductions = inner * (2 * again + 2) + is_last + is_first
        messages.append(Messages("all_reduce", "tensor", whole, reductions))
    if is_last:
        sums = 2 + (config.train.label_smoothing > 0)
        messages += [
            Messages("all_reduce", "tensor", targets, 2 * again + 2),
            Messages("all_reduce", "tensor", row.targets * _EXACT),
            Messages("all_reduce", "tensor", row.targets * _EXACT * sums),
        ]
    return [message for message in messages if message.number]


def _pipeline_messages(config: Config, layout: Layout, stage: int, row: RowSize) -> list[Messages]:
    """The hidden states of one micro-batch to the next stage, and their gradients back."""
    held = row.tokens // layout.tensor if config.parallel.sequence else row.tokens
    size = held * config.model.hidden_size * element_size(config)
    neighbours = (stage > 0) + (stage < layout.pipeline - 1)
    return [Messages(kind, "pipeline", size, neighbours) for kind in ("send", "receive") if neighbours]


def _tied_table(config: Config, layout: Layout, num_ids: int, stage: int) -> list[Messages]:
    """Between the first and the last stage: the gradient of the word table, and the table after the update."""
    if stage not in (0, layout.pipeline - 1):
        return []
    elements = padded_vocab_size(config.model, num_ids) // layout.tensor * config.model.hidden_size
    return [
        Messages("all_reduce", "pipeline", elements * _EXACT),
        Messages("broadcast", "pipeline", elements * element_size(config)),
    ]


def _exact_loss(layout: Layout) -> list[Messages]:
    """Counts over all ranks, sums over the replicas; with a pipeline the last stage tells the others the sums."""
    return [
        Messages("all_reduce", "world", _COUNTS),
        Messages("all_reduce", "data", _SUMS),
        Messages("broadcast", "pipeline", _SUMS),
    ]

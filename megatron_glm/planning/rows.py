"""How long the rows of a run are, from the configuration alone: no torch is imported here."""

from __future__ import annotations

import math

from megatron_glm.config.phases import run_phases
from megatron_glm.config.schema import Config
from megatron_glm.model.costs import row_tokens
from megatron_glm.planning.communication import RowSize

_MULTIPLE = 64


def row_multiple(config: Config) -> int:
    """What the length of every row is a multiple of, in tokens: tensor-parallel ranks can divide it."""
    return math.lcm(_MULTIPLE, config.parallel.tensor)


def row_capacity(config: Config) -> int | None:
    """Tokens of every row of a pipeline, which sends hidden states of one size; None without one.

    A micro-batch of the largest samples of any phase fits.
    """
    if config.parallel.pipeline == 1:
        return None
    largest = max(phase.settings.window + 2 * phase.settings.objective.max_spans for phase in run_phases(config))
    return _padded(config.train.micro_batch_size * largest, row_multiple(config))


def typical_row(config: Config) -> RowSize:
    """A micro-batch of full windows with the mixture's average of masked tokens, as the run begins."""
    raw = config.train.micro_batch_size * config.data.window
    tokens, targets = (raw * each for each in row_tokens(config.objective))
    return RowSize(row_capacity(config) or _padded(tokens, row_multiple(config)), round(targets))


def _padded(tokens: float, multiple: int) -> int:
    return math.ceil(tokens / multiple) * multiple

"""Steps of layouts and batches that the matrix does not have: rare, and allowed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from deepspeed.accelerator import get_accelerator

from megatron_glm.config.batching import BatchSizes
from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.schema import Config
from megatron_glm.data.batch import Batch, collate
from megatron_glm.data.loader import step_indices
from megatron_glm.objective.sample import Sample
from megatron_glm.parallel.groups import Groups
from megatron_glm.planning.rows import row_multiple
from megatron_glm.training.engines.exact_loss import Counts, sums_over_replicas
from megatron_glm.training.objective_weights import combine, objective_weights
from tests.distributed.training import cases, layouts

PROBABILITIES = (0.5, 0.2, 0.3)
LONGEST = 40  # tokens of a sample of cases.py
HELD_OUT = 2  # windows of an evaluation: fewer than replicas, so that some of them have a micro-batch of nothing

# Which samples have nothing to mask, by their index.
EMPTY = {
    "none": lambda index: False,
    "a replica": lambda index: index % 8 in (2, 3, 6, 7),
    "a step": lambda index: 8 <= index < 16,
}


@dataclass(frozen=True)
class Rare:
    """A layout, and what one process must have too.

    Attributes:
        empty: a key of EMPTY.
        common: sections and their settings, for one process too.
        own: sections and their settings of the layout alone.
    """

    name: str
    processes: int
    own: dict[str, dict[str, Any]]
    micro: int = 2
    empty: str = "none"
    common: dict[str, dict[str, Any]] = field(default_factory=dict)

    def config(self, *, alone: bool) -> Config:
        tree = cases.config(stage=0, micro=2 if alone else self.micro, layers=3).model_dump(mode="json")
        for sections in (self.common, {} if alone else self.own):
            for name, settings in sections.items():
                tree[name] |= settings
        return config_from_tree(tree)


def sample(index: int, empty: str) -> Sample:
    one = cases.sample(index)
    if not EMPTY[empty](index):
        return one
    rows = ("input_ids", "targets", "loss_mask", "position_ids", "block_position_ids", "segments")
    return replace(one, **{name: getattr(one, name)[:0] for name in rows})


def row(settings: Config, indices: np.ndarray, empty: str) -> Batch:
    multiple, micro = row_multiple(settings), settings.train.micro_batch_size
    capacity = -(-micro * LONGEST // multiple) * multiple if settings.parallel.pipeline > 1 else None
    samples = [sample(int(index), empty) for index in indices]
    return collate(samples, capacity=capacity, multiple=multiple, pad_id=0)


def steps(number: int, empty: str, settings: Config, engine: cases.Engine, groups: Groups) -> dict:
    """Losses, gradient norms and the first step's gradients, and what is evaluated after each step."""
    sizes, consumed = BatchSizes.of(settings.train), 0
    found: dict[str, Any] = {"loss": [], "norm": [], "evaluated": []}
    replica, replicas = groups.place.data, groups.layout.data
    for _ in range(number):
        indices = step_indices(consumed, sizes.at(consumed), replica, replicas, settings.train.micro_batch_size)
        share = [row(settings, own, empty) for own in indices]
        counts = Counts.of(share).over_replicas(engine.device, groups.data)
        weights = objective_weights(counts.targets, PROBABILITIES, settings.train.loss)
        sums = sums_over_replicas(engine.accumulate(share, weights), groups.data)
        if "gradients" not in found:
            found["gradients"] = {name: gradient.numpy().copy() for name, gradient in engine.gradients()}
        found["loss"].append(combine(sums, weights))
        found["norm"].append(engine.update(settings.optimizer.learning_rate))
        found["evaluated"].append(_evaluated(settings, engine, groups))
        consumed += sizes.at(consumed)
    return found


def _evaluated(settings: Config, engine: cases.Engine, groups: Groups) -> tuple[float, ...]:
    """The summed nll by objective of a few windows, as evaluation_batches hands them out."""
    firsts = range(groups.place.data, HELD_OUT + groups.place.data, groups.layout.data)
    windows = [np.arange(50 + first, 50 + max(first, min(first + 1, HELD_OUT))) for first in firsts]
    sums, _ = engine.evaluate(row(settings, own, "none") for own in windows)
    return sums_over_replicas(sums, groups.data)


def all_in_turn(rare: list[Rare], number: int, alone: bool) -> list[dict]:
    """What this rank found in each of some layouts, whose samples are the same."""
    get_accelerator().is_fp16_supported = lambda: True  # a CPU computes in it, if slowly
    function = partial(steps, number, rare[0].empty)
    return layouts.in_turn(function, [one.config(alone=alone) for one in rare])

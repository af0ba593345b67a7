"""Which layers each stage of a run's pipeline has, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.config.schema import Config
from megatron_glm.data.loader import Collate
from megatron_glm.objective.sample import Sample
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.parallel.stages import balanced_stages
from megatron_glm.planning.stages import Division, pipeline_stages
from megatron_glm.training.engines.layer_timing import measured_costs

_TIMED = 8  # micro-batches a replica: rows differ in their targets, and so does the work of the last layer


def divide(
    config: Config,
    num_ids: int,
    samples: Callable[[range], Sequence[Sample]],
    collate: Collate,
    *,
    groups: Groups,
    ranks: Ranks,
    saved: Sequence[Sequence[int]] | None = None,
) -> Division:
    """The division of a run, the same on all ranks, which call this together.

    Args:
        samples: makes training samples by their index, where a measurement wants some.
        saved: start and stop of the stages with which the checkpoint that is continued was trained. They hold as
            long as their number does: another measurement would give another order of sums, and other last bits.
    """
    parallel, layers = config.parallel, config.model.num_layers
    if parallel.pipeline == 1 or parallel.pipeline == layers:
        return Division(pipeline_stages(config, num_ids), "the only division")
    if parallel.stage_layers:
        return Division(pipeline_stages(config, num_ids), "parallel.stage_layers")
    if parallel.stage_costs == "counted":
        return Division(pipeline_stages(config, num_ids), "by counted multiply-adds")
    if saved and len(saved) == parallel.pipeline and saved[-1][1] == layers:
        return Division(tuple(range(start, stop) for start, stop in saved), "as in the checkpoint")
    micro, first = config.train.micro_batch_size, groups.place.data * _TIMED
    batches = [collate(samples(range(micro * k, micro * (k + 1)))) for k in range(first, first + _TIMED)]
    costs = measured_costs(config, num_ids, batches, groups=groups, ranks=ranks)
    return Division(balanced_stages(costs, parallel.pipeline), f"by measured times, {_shown(costs)}")


def _shown(costs: Sequence[float]) -> str:
    first, inner, last = (f"{1e3 * cost:.3g}" for cost in (costs[0], costs[1], costs[-1]))
    return f"first {first}, inner {inner}, last {last} ms a micro-batch"


def stage_bounds(stages: Sequence[range]) -> list[list[int]]:
    """The stages as JSON can hold them: first layer, and the one after the last."""
    return [[stage.start, stage.stop] for stage in stages]


def saved_stages(checkpoint: Path | None) -> list[list[int]] | None:
    """The stages with which a checkpoint was trained; None where there is none, or it does not tell."""
    return CheckpointReader(checkpoint, verify=False).state.get("stages") if checkpoint else None

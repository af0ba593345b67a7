"""Many layouts in one set of processes, and how each is compared with one process.

To start the processes and warm them up costs more than to train a small model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from megatron_glm.config.schema import Config
from megatron_glm.parallel.cuts import Shard
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.layout import Layout
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.training.processes import distributed_processes
from tests.distributed.training import cases

GRADIENT_BOUND = 5e-6  # of the largest entry of the tensor
LOSS_BOUND = 1e-5  # relative, and of the gradient norm too


def in_turn(
    function: Callable[[Config, cases.Engine, Groups], Any],
    layouts: Iterable[Config],
    make: Callable[[Config, Ranks], tuple[cases.Engine, Groups]] = cases.make_engine,
) -> list[Any]:
    """What `function` makes of each layout; to be called in every rank.

    Each layout has an engine and groups of its own, and its groups are gone before the next one's are made.
    """
    results = []
    with distributed_processes(threads=1) as ranks:
        for settings in layouts:
            try:
                engine, groups = make(settings, ranks)
                results.append(function(settings, engine, groups))
            except Exception as error:
                error.add_note(f"under {settings.parallel}, {settings.train}")
                raise
            for group in {groups.data, groups.pipeline, groups.tensor, groups.ends} - {None}:
                dist.destroy_process_group(group)
    return results


def steps(number: int, settings: Config, engine: cases.Engine, groups: Groups) -> dict:
    """Losses and gradient norms of some steps, and the first one's gradients, as cases.run_steps has them."""
    made = [cases.one_step(settings, engine, groups, step) for step in range(number)]
    return {"loss": [one[0] for one in made], "norm": [one[1] for one in made], "gradients": made[0][2]}


class Differences(NamedTuple):
    """How far a rank is from one process.

    Attributes:
        gradient: of any parameter, relative to its tensor's largest entry.
        parameter: the one.
        loss: of any step, relative.
        norm: of the gradient in any step, relative.
    """

    gradient: float
    parameter: str
    loss: float
    norm: float

    @property
    def is_equal(self) -> bool:
        return self.gradient < GRADIENT_BOUND and self.loss < LOSS_BOUND and self.norm < LOSS_BOUND


def differences(result: dict, reference: dict, settings: Config, *, processes: int, rank: int) -> Differences:
    """Compare what `steps` gave a rank with what it gave one process."""
    parallel = settings.parallel
    place = Layout.of(processes, tensor=parallel.tensor, pipeline=parallel.pipeline).coordinates(rank)
    by_name = {}
    for name, part in result["gradients"].items():
        whole = reference["gradients"][name]
        wanted = Shard.of(name, rank=place.tensor, size=parallel.tensor).take(torch.from_numpy(whole)).numpy()
        by_name[name] = of_largest(part - wanted, whole)
    worst = max(by_name, key=by_name.__getitem__)
    return Differences(
        by_name[worst], worst, _relative(result, reference, "loss"), _relative(result, reference, "norm")
    )


def of_largest(error: np.ndarray, whole: np.ndarray) -> float:
    """The largest entry of an error, relative to that of a tensor; infinite where one is not a number."""
    largest = np.abs(error).max(initial=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = largest / np.abs(whole).max(initial=0) if largest != 0 else 0.0
    return float(np.nan_to_num(share, nan=np.inf, posinf=np.inf))


def _relative(result: dict, reference: dict, key: str) -> float:
    pairs = zip(np.array(result[key]), np.array(reference[key]), strict=True)
    return max(of_largest(found - wanted, wanted) for found, wanted in pairs)

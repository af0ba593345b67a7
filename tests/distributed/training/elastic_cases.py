"""What the processes of the elastic matrix do: train under one layout, go on under another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.writing import save_checkpoint
from megatron_glm.config.schema import Config
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import DistributedRanks
from megatron_glm.training.engines.load_proof import prove_loaded
from tests.distributed.training import cases

FIRST_STEPS = 3
NEXT_STEPS = 10


@dataclass(frozen=True)
class LayoutCase:
    """A layout; its micro-batches are as large as its replicas allow with two of them in a step."""

    processes: int
    stage: int
    data: int = 1
    tensor: int = 1
    pipeline: int = 1

    def config(self) -> Config:
        micro = cases.GLOBAL_BATCH // self.data // 2
        return cases.config(stage=self.stage, micro=micro, tensor=self.tensor, pipeline=self.pipeline)


LAYOUTS = {
    "one": LayoutCase(1, 1),
    "dp2-zero1": LayoutCase(2, 1, data=2),
    "dp2-zero3": LayoutCase(2, 3, data=2),
    "tp2": LayoutCase(2, 1, tensor=2),
    "pp2": LayoutCase(2, 1, pipeline=2),
    "tp2-pp2": LayoutCase(4, 1, tensor=2, pipeline=2),
    "tp2-dp2-zero2": LayoutCase(4, 2, data=2, tensor=2),
}


def save(directory: Path, step: int, engine: cases.Engine) -> str:
    arguments = {"run_id": "test", "shapes": engine.shapes, "state": {}, "ranks": DistributedRanks()}
    return str(save_checkpoint(directory, step=step, fragments=engine.fragments(), **arguments))


def next_steps(settings: Config, engine: cases.Engine, groups: Groups) -> dict[str, Any]:
    """Losses of the next steps, the samples of this rank in each, and the decay of the optimizer's groups."""
    steps = range(FIRST_STEPS, FIRST_STEPS + NEXT_STEPS)
    place = {"rank": groups.place.data, "size": groups.layout.data}
    samples = [
        [key[0] for batch in cases.batches(settings, step=step, **place) for key in batch.row_keys.spans]
        for step in steps
    ]
    return {
        "loss": [cases.one_step(settings, engine, groups, step)[0] for step in steps],
        "samples": samples,
        "decay": [group["weight_decay"] for group in engine._engine.optimizer.param_groups],
    }


class Whole:
    """The uninterrupted run of each layout, with a checkpoint on its way."""

    def __init__(self, directory: Path, names: Iterable[str]):
        self._directory, self._names = directory, list(names)

    def __call__(self, settings: Config, engine: cases.Engine, groups: Groups) -> dict[str, Any]:
        for step in range(FIRST_STEPS):
            cases.one_step(settings, engine, groups, step)
        path = save(self._directory / self._names.pop(0), FIRST_STEPS, engine)
        return {"path": path, **next_steps(settings, engine, groups)}


class Moved:
    """The same run, gone on from one checkpoint after another."""

    def __init__(self, directory: Path, paths: dict[str, str]):
        self._directory, self._paths = directory, list(paths.items())

    def __call__(self, settings: Config, engine: cases.Engine, groups: Groups) -> dict[str, Any]:
        name, source = self._paths.pop(0)
        checkpoint = CheckpointReader(Path(source))
        engine.load(checkpoint, step=checkpoint.step)
        prove_loaded(engine, checkpoint, step=checkpoint.step, groups=groups, ranks=DistributedRanks())
        return {"path": save(self._directory / name, FIRST_STEPS, engine), **next_steps(settings, engine, groups)}

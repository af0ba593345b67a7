"""Runs with the options of precision and schedule, on the model and the samples of cases.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from megatron_glm.config.batching import BatchSizes
from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.schema import Config
from megatron_glm.data.batch import Batch, collate
from megatron_glm.data.loader import Step, step_indices
from megatron_glm.parallel.cuts import Shard
from megatron_glm.parallel.layout import Layout
from megatron_glm.training.control.guard import Guard, watched
from megatron_glm.training.control.steering import Steering
from megatron_glm.training.engines.exact_loss import Counts, sums_over_replicas
from megatron_glm.training.guards.mishaps import Mishaps
from megatron_glm.training.objective_weights import combine, objective_weights
from megatron_glm.training.processes import distributed_processes
from megatron_glm.training.progress import Progress
from megatron_glm.training.schedule import embedding_gradient_factor
from megatron_glm.training.trainer import DivergedError, Trainer
from tests.distributed.training import cases

PROBABILITIES = (0.5, 0.2, 0.3)


def with_options(settings: Config, *, train: dict | None = None, parallel: dict | None = None) -> Config:
    tree = settings.model_dump(mode="json")
    return config_from_tree(
        {**tree, "train": tree["train"] | (train or {}), "parallel": tree["parallel"] | (parallel or {})}
    )


def batches(settings: Config, first: int, size: int, *, rank: int, replicas: int) -> list[Batch]:
    micro = settings.train.micro_batch_size
    capacity = -(-micro * 40 // 64) * 64 if settings.parallel.pipeline > 1 else None
    rows = step_indices(first, size, rank, replicas, micro)
    return [collate([cases.sample(int(i)) for i in row], capacity=capacity, pad_id=0) for row in rows]


def run(settings: Config, steps: int, rate: float) -> dict[str, Any]:
    """Each step's size, loss, gradients, norm (None: skipped) and the loss scale after it; for every rank."""
    with distributed_processes(threads=1) as ranks:
        get_accelerator().is_fp16_supported = lambda: True  # a CPU computes in it, if slowly
        engine, groups = cases.make_engine(settings, ranks)
        sizes, consumed = BatchSizes.of(settings.train), 0
        found: dict[str, list] = {"size": [], "loss": [], "gradients": [], "norm": [], "scale": []}
        for _ in range(steps):
            size = sizes.at(consumed)
            share = batches(settings, consumed, size, rank=groups.place.data, replicas=groups.layout.data)
            counts = Counts.of(share).over_replicas(engine.device, groups.data)
            weights = objective_weights(counts.targets, PROBABILITIES, "per_objective")
            factor = embedding_gradient_factor(settings.train.embedding_gradient, consumed)
            sums = engine.accumulate(share, weights, embedding_gradient=factor)
            found["size"].append(size)
            found["loss"].append(combine(sums_over_replicas(sums, groups.data), weights))
            found["gradients"].append({name: gradient.numpy().copy() for name, gradient in engine.gradients()})
            found["norm"].append(engine.update(rate))
            found["scale"].append(engine.loss_scale.value)
            consumed += size
        return found


class Overflowing:
    """Stands in for an engine whose every step overflows."""

    def __init__(self, scale: float):
        self.device = "cpu"
        self.loss_scale = self
        self.value = scale

    def accumulate(self, batches, weights, *, embedding_gradient):
        return torch.zeros(3, dtype=torch.float64)

    def update(self, rate):
        self.value = max(1.0, self.value / 2)


class Steps:
    """Stands in for a loader."""

    wait_seconds = 0.0

    def __init__(self, settings: Config):
        self._settings, self._consumed = settings, 0

    def __next__(self):
        share = batches(self._settings, self._consumed, cases.GLOBAL_BATCH, rank=0, replicas=1)
        step = Step.of(self._consumed, share, pin_memory=False)
        self._consumed += cases.GLOBAL_BATCH
        return step


def run_overflowing(settings: Config, scale: float) -> tuple[list[dict], Progress, str]:
    """What a trainer records while every step overflows, and what it stops with."""
    # An output that is there: a run whose output vanishes stops.
    settings = with_options(settings, train={"watchdog_seconds": None, "output": "."})
    with distributed_processes(threads=1) as ranks, watched(settings, rank=0, started=0.0) as watch:
        records: list[dict] = []
        progress = Progress()
        guard = Guard(
            settings,
            ranks,
            watch,
            layout=Layout.of(1),
            device=torch.device("cpu"),
            steering=Steering(settings, None, first_step=0),
            progress=progress,
            record=records.append,
        )
        trainer = Trainer(
            settings,
            Overflowing(scale),
            Steps(settings),
            replicas=dist.group.WORLD,
            probabilities=lambda samples: PROBABILITIES,
            phase=lambda sample: 0,
            progress=progress,
            validation_batches=lambda objective: [],
            objectives=(),
            record=records.append,
            saver=SimpleNamespace(save=lambda progress: None, step_end=lambda: None, finish=lambda: None),
            check=lambda step: None,
            guard=guard,
            mishaps=Mishaps(
                settings.train, None, progress=progress, record=records.append, documents=lambda step, samples: None
            ),
            go_back=lambda wish: None,
        )
        try:
            trainer.run()
        except DivergedError as error:
            return records, trainer.progress, str(error)
        return records, trainer.progress, ""


def parts_of(whole: dict[str, np.ndarray], rank: int, size: int) -> dict[str, np.ndarray]:
    """The shards of a tensor-parallel rank of whole tensors."""
    return {
        name: Shard.of(name, rank=rank, size=size).take(torch.from_numpy(tensor)).numpy()
        for name, tensor in whole.items()
    }


def save_with(settings: Config, directory: str, steps: int, resume: str | None = None) -> dict:
    get_accelerator().is_fp16_supported = lambda: True
    return cases.run_and_save(settings, str(Path(directory)), steps, resume)

"""A small model and batches of very unequal target counts, for the comparison of layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.writing import save_checkpoint
from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.schema import Config
from megatron_glm.data.batch import Batch, collate
from megatron_glm.data.loader import step_indices
from megatron_glm.objective.sample import Objective, Sample
from megatron_glm.parallel.groups import Groups, make_groups
from megatron_glm.parallel.layout import Layout
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.planning.stages import pipeline_stages
from megatron_glm.training.engines.exact_loss import Counts, sums_over_replicas
from megatron_glm.training.engines.model_building import build_model
from megatron_glm.training.engines.pipeline_engine import PipelineEngine
from megatron_glm.training.engines.zero_engine import ZeroEngine
from megatron_glm.training.objective_weights import combine, objective_weights
from megatron_glm.training.processes import distributed_processes

Engine = ZeroEngine | PipelineEngine

NUM_IDS = 300
GLOBAL_BATCH = 8


def config(
    *,
    stage: int,
    micro: int,
    precision: str = "fp32",
    loss: str = "per_objective",
    dropout: float = 0.1,
    tensor: int = 1,
    sequence: bool = False,
    recompute: str = "none",
    pipeline: int = 1,
    layers: int = 2,
):
    return config_from_tree(
        {
            "model": {
                "num_layers": layers,
                "hidden_size": 32,
                "num_attention_heads": 4,
                "max_positions": 64,
                "hidden_dropout": dropout,
                "attention_dropout": dropout,
            },
            "tokenizer": {"path": "none"},
            "data": {"sources": [{"path": "none"}], "window": 48},
            "objective": {"token": 0.5, "sentence": 0.2, "document": 0.3},
            "optimizer": {"learning_rate": 1e-3, "gradient_clipping": 0.5},
            "train": {
                "output": "none",
                "steps": 10,
                "global_batch_size": GLOBAL_BATCH,
                "micro_batch_size": micro,
                "precision": precision,
                "loss": loss,
                "seed": 7,
                "recompute": recompute,
            },
            "parallel": {"zero_stage": stage, "tensor": tensor, "sequence": sequence, "pipeline": pipeline},
            # Without a threshold ZeRO-3 would keep every parameter of so small a model whole.
            "deepspeed": {"zero_optimization": {"stage3_param_persistence_threshold": 100}},
        }
    )


def sample(index: int) -> Sample:
    """A sample whose length, objective and number of targets vary wildly with its index; every fifth is empty."""
    rng = np.random.default_rng([index, 5])
    if index % 5 == 3:
        empty = np.zeros(0, np.int32)
        return Sample(
            index=index,
            objective=Objective.TOKEN,
            input_ids=empty,
            targets=empty,
            loss_mask=empty.astype(bool),
            position_ids=empty,
            block_position_ids=empty,
            segments=np.zeros((0, 3), np.int32),
        )
    objective = Objective((0, 2, 2, 1, 0, 1)[index % 6])
    part_a, part_b = int(rng.integers(3, 12)), int(rng.integers(1, 30)) if objective else 1
    total = part_a + part_b
    place = np.full(part_b, int(rng.integers(0, part_a)))
    return Sample(
        index=index,
        objective=objective,
        input_ids=rng.integers(0, NUM_IDS, total).astype(np.int32),
        targets=rng.integers(0, NUM_IDS, total).astype(np.int32),
        loss_mask=np.arange(total) >= part_a,
        position_ids=np.concatenate([np.arange(part_a), place]).astype(np.int32),
        block_position_ids=np.concatenate([np.zeros(part_a), 1 + np.arange(part_b)]).astype(np.int32),
        segments=np.array([[0, part_a, total]], np.int32),
    )


def batches(settings: Config, *, step: int, rank: int, size: int) -> list[Batch]:
    indices = step_indices(step * GLOBAL_BATCH, GLOBAL_BATCH, rank, size, settings.train.micro_batch_size)
    # A sample has at most 11 + 29 tokens; the rows of a pipeline are all alike.
    capacity = -(-settings.train.micro_batch_size * 40 // 64) * 64 if settings.parallel.pipeline > 1 else None
    return [collate([sample(int(i)) for i in row], capacity=capacity, pad_id=0) for row in indices]


def run_steps(settings: Config, steps: int) -> dict:
    """Losses, gradient norms and the first step's gradients of one layout; to be called in every rank."""
    with distributed_processes(threads=1) as ranks:
        engine, groups = make_engine(settings, ranks)
        result: dict = {"loss": [], "norm": []}
        for step in range(steps):
            loss, norm, gradients = one_step(settings, engine, groups, step)
            result["loss"].append(loss)
            result["norm"].append(norm)
            result.setdefault("gradients", gradients)
        return result


def make_engine(settings: Config, ranks: Ranks) -> tuple[Engine, Groups]:
    parallel = settings.parallel
    groups = make_groups(Layout.of(ranks.size, tensor=parallel.tensor, pipeline=parallel.pipeline))
    model = build_model(settings, NUM_IDS, groups, pipeline_stages(settings, NUM_IDS))
    accumulation = GLOBAL_BATCH // settings.train.micro_batch_size // groups.layout.data
    kind = PipelineEngine if parallel.pipeline > 1 else ZeroEngine
    return kind(settings, model, groups=groups, accumulation=accumulation), groups


def one_step(settings: Config, engine: Engine, groups: Groups, step: int) -> tuple[float, float, dict]:
    share = batches(settings, step=step, rank=groups.place.data, size=groups.layout.data)
    copies = groups.layout.tensor * groups.layout.pipeline
    counts, _ = Counts.of(share).with_totals((0, 0), engine.device, None, copies=copies)  # as Agreement asks
    weights = objective_weights(counts.targets, (0.5, 0.2, 0.3), settings.train.loss)
    sums = sums_over_replicas(engine.accumulate(share, weights), groups.data)
    gradients = {name: gradient.clone() for name, gradient in engine.gradients()} if step == 0 else {}
    norm = engine.update(settings.optimizer.learning_rate)
    return combine(sums, weights), norm, {name: g.numpy() for name, g in gradients.items()}


def run_and_save(settings: Config, directory: str, steps: int, resume: str | None = None) -> dict:
    """Train from the start or from a checkpoint, then save: losses, and where the checkpoint lies."""
    with distributed_processes(threads=1) as ranks:
        engine, groups = make_engine(settings, ranks)
        first = 0
        if resume:
            checkpoint = CheckpointReader(Path(resume))
            first = checkpoint.step
            engine.load(checkpoint, step=first)
        losses = [one_step(settings, engine, groups, step)[0] for step in range(first, first + steps)]
        path = save_checkpoint(
            Path(directory),
            run_id="test",
            step=first + steps,
            fragments=engine.fragments(),
            shapes=engine.shapes,
            state={},
            ranks=ranks,
        )
        return {"loss": losses, "path": str(path)}


def run_evaluations(settings: Config, numbers: list[list[int]]) -> list[tuple]:
    """Summed nll and counts of so many batches for each replica, before, between and after steps."""
    with distributed_processes(threads=1) as ranks:
        engine, groups = make_engine(settings, ranks)
        result = []
        for step, number in enumerate(numbers):
            share = [batch for s in range(2) for batch in batches(settings, step=s, rank=0, size=1)]
            sums, counts = engine.evaluate(iter(share[: number[groups.place.data]]))
            result.append((sums.tolist(), counts.targets))
            one_step(settings, engine, groups, step)
        return result


def word_table(settings: Config, steps: int) -> bytes | None:
    """This rank's copy of the word table after some steps; None where it has none."""
    with distributed_processes(threads=1) as ranks:
        engine, groups = make_engine(settings, ranks)
        for step in range(steps):
            one_step(settings, engine, groups, step)
        tables = [p for name, p in engine._engine.module.named_parameters() if name.endswith("word_embeddings.weight")]
        return tables[0].detach().float().numpy().tobytes() if tables else None


def hashes(result: dict) -> dict[str, str]:
    """Of every weight and moment of the checkpoint that `run_and_save` wrote."""
    return CheckpointReader(Path(result["path"])).parameter_hashes()

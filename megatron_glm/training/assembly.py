"""The trainer of a run, put together from what saves, judges, goes back and feeds it; and its training."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from megatron_glm.data.loader import Loader, evaluation_batches
from megatron_glm.data.sample_documents import SampleDocuments
from megatron_glm.errors import CheckpointError
from megatron_glm.parallel.together import agreed, told_by_rank
from megatron_glm.training.checkpoints.rewinding import Rewinder
from megatron_glm.training.checkpoints.saved_state import saved_state, tokenizer_files
from megatron_glm.training.checkpoints.saving import Saver
from megatron_glm.training.checkpoints.starting import checkpoints_of
from megatron_glm.training.control.guard import Guard
from megatron_glm.training.engines.replica_check import ReplicaError, check_replicas
from megatron_glm.training.engines.stage_division import stage_bounds
from megatron_glm.training.fault_points import FaultPoints, read_faults
from megatron_glm.training.guards.culprits import Culprits
from megatron_glm.training.guards.divergence import DivergedError, RewindWished
from megatron_glm.training.guards.mishaps import Mishaps
from megatron_glm.training.loaders import Loaders
from megatron_glm.training.prepared_run import PreparedRun
from megatron_glm.training.progress import Progress
from megatron_glm.training.reports.console import Console
from megatron_glm.training.trainer import Trainer


def train(run: PreparedRun, console: Console, guard: Guard) -> str:
    """All remaining steps: why they end before the last; '' if not.

    Raises:
        UserError: as Trainer.run does; RankError where one rank alone has it.
    """
    faults = agreed(run.ranks, lambda: FaultPoints(read_faults(os.environ), progress=run.beginning.progress))
    faults.plant_in_engine(run.engine)
    with Loaders(run, faults) as loaders:
        mishaps = _mishaps(run, console)
        rewinder = _rewinder(run, mishaps, console, guard)
        with _saver(run, mishaps, rewinder, console, guard) as saver:
            trainer = _trainer(run, loaders, saver, mishaps, rewinder, console, guard)
            with told_by_rank(run.ranks, unless=(DivergedError, CheckpointError, ReplicaError)):
                return trainer.run()


def _mishaps(run: PreparedRun, console: Console) -> Mishaps:
    documents = SampleDocuments(run.config, run.inputs.samples)
    return Mishaps(
        run.config.train,
        run.beginning.saved.get("mishaps"),
        progress=run.beginning.progress,
        record=console.record,
        documents=Culprits(Path(run.config.train.output), documents, leads=run.ranks.rank == 0),
    )


def _rewinder(run: PreparedRun, mishaps: Mishaps, console: Console, guard: Guard) -> Rewinder:
    return Rewinder(
        run.engine,
        mishaps,
        guard.steering,
        output=Path(run.config.train.output),
        directory=checkpoints_of(run.config),
        run_id=run.beginning.run_id,
        groups=run.groups,
        ranks=run.ranks,
        progress=run.beginning.progress,
        forget=console.forget,
        record=console.record,
    )


def _saver(run: PreparedRun, mishaps: Mishaps, rewinder: Rewinder, console: Console, guard: Guard) -> Saver:
    def state(progress: Progress) -> dict[str, Any]:
        return saved_state(
            run.config,
            progress,
            engine=run.engine,
            layout=run.groups.layout,
            stages=stage_bounds(run.division.stages),
            tokenizer=run.inputs.tokenizer,
            source_lengths=run.inputs.samples.lengths,
            source_hashes=run.inputs.source_hashes,
            steering=guard.steering.state(),
            mishaps=mishaps.state(),
            validation=console.last_validation,
        )

    def report(saved: dict[str, Any]) -> None:
        console.record(saved)
        rewinder.saved()

    return Saver(
        run.config.checkpoint,
        run.engine,
        directory=checkpoints_of(run.config),
        run_id=run.beginning.run_id,
        state=state,
        attachments=tokenizer_files(run.inputs.tokenizer),
        ranks=run.ranks,
        report=report,
    )


def _trainer(
    run: PreparedRun,
    loaders: Loaders,
    saver: Saver,
    mishaps: Mishaps,
    rewinder: Rewinder,
    console: Console,
    guard: Guard,
) -> Trainer:
    config, inputs, engine, groups = run.config, run.inputs, run.engine, run.groups

    def go_back(wish: RewindWished) -> Loader | None:
        return loaders.open() if rewinder(wish) else None

    return Trainer(
        config,
        engine,
        loaders.open(),
        replicas=groups.data,
        probabilities=inputs.samples.probabilities,
        phase=inputs.samples.phase,
        progress=run.beginning.progress,
        validation_batches=partial(
            evaluation_batches,
            inputs.held_out,
            collate=inputs.collate,
            dp_rank=groups.place.data,
            dp_size=groups.layout.data,
            micro_batch_size=config.train.micro_batch_size,
        ),
        objectives=inputs.held_out.objectives,
        record=console.record,
        saver=saver,
        check=lambda step: check_replicas(engine.copies(), step=step, groups=groups, ranks=run.ranks),
        guard=guard,
        mishaps=mishaps,
        go_back=go_back,
    )

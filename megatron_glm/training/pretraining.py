"""A pretraining run: put the parts together, start where the last run stopped, train.

Read it top to bottom for the order in which things are made; trainer.py holds the loop.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.writing import save_checkpoint
from megatron_glm.config.batching import BatchSizes
from megatron_glm.config.combinations import check_combinations
from megatron_glm.config.loading import config_to_yaml
from megatron_glm.config.schema import Config
from megatron_glm.data.batch import collate
from megatron_glm.data.dataset import HeldOutDataset, SampleDataset
from megatron_glm.data.loader import Loader, StepLoader, evaluation_batches
from megatron_glm.data.process_loader import ProcessLoader
from megatron_glm.data.unigram import unigram_entropy
from megatron_glm.errors import CheckpointError, ConfigError, RankError, UserError
from megatron_glm.files import atomic_file
from megatron_glm.locking import exclusive
from megatron_glm.parallel.groups import Groups, make_groups
from megatron_glm.parallel.layout import Layout
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.loading import load_tokenizer
from megatron_glm.training.banner import banner, versions
from megatron_glm.training.console import Console
from megatron_glm.training.engines import Engine, build_engine, row_capacity
from megatron_glm.training.model_building import check_divides
from megatron_glm.training.processes import distributed_processes
from megatron_glm.training.replica_check import ReplicaError, check_replicas
from megatron_glm.training.resuming import Start, changed_settings, check_continues, choose_start
from megatron_glm.training.same_data import check_same_data
from megatron_glm.training.trainer import DivergedError, Progress, Trainer


def pretrain(config: Config) -> None:
    """Run a configuration to its last step, in every process of the job.

    Raises:
        UserError: the run cannot start or go on; the same on all ranks, but for RankError.
    """
    check_combinations(config)
    with distributed_processes(threads=config.train.threads) as ranks, ExitStack() as held:
        layout = Layout.of(ranks.size, tensor=config.parallel.tensor, pipeline=config.parallel.pipeline)
        accumulation = BatchSizes.of(config.train).accumulation(config.train.micro_batch_size, layout.data)
        inputs = _agreed(ranks, lambda: _Inputs(config))
        check_divides(config, inputs.tokenizer.vocab_size)
        leads = ranks.rank == 0
        _agreed(ranks, lambda: held.enter_context(_locked_output(config)) if leads else None)
        start = _agreed_start(config, inputs, ranks)
        groups = make_groups(layout)
        engine = build_engine(config, inputs.tokenizer.vocab_size, groups=groups, accumulation=accumulation)
        progress, run_id = Progress(), ranks.gather(uuid.uuid4().hex)[0]
        if start.path:
            checkpoint = CheckpointReader(start.path, verify=False)  # rank 0 has verified it
            progress, run_id = Progress(**checkpoint.state["progress"]), checkpoint.run_id
            engine.load(checkpoint, step=progress.updates)
            engine.loss_scale.load(checkpoint.state.get("loss_scale"))
        _agreed(ranks, lambda: _write_config(config) if leads else None)
        with Console(config, leads=leads, start_step=progress.step) as console:
            if leads:
                _announce(config, inputs, engine, layout, accumulation, start, progress, console)
            _train(config, inputs, engine, groups, ranks, progress, run_id, console)


class _Inputs:
    """What a run reads: tokenizer, training samples, held-out windows."""

    def __init__(self, config: Config):
        self.tokenizer: Tokenizer = load_tokenizer(config.tokenizer.path)
        self.samples = SampleDataset.open(config, self.tokenizer)
        self.held_out = HeldOutDataset.open(config, self.tokenizer)
        self.row_options = {"pad_id": self.tokenizer.special.eos, "capacity": row_capacity(config)}
        self.collate = partial(collate, **self.row_options)


def _agreed(ranks: Ranks, work: Callable[[], Any]) -> Any:
    """Do this rank's work; where it fails on any rank, all ranks raise the first one's error."""
    value, failure = None, None
    try:
        value = work()
    except UserError as error:
        failure = error
    failures = [message for message in ranks.gather(failure and str(failure)) if message]
    if failures:
        raise failure or UserError(failures[0])
    return value


def _agreed_start(config: Config, inputs: _Inputs, ranks: Ranks) -> Start:
    """Rank 0's choice of a checkpoint, verified byte by byte and fit to be continued."""

    def choose() -> dict | None:
        if ranks.rank != 0:
            return None
        start = choose_start(config.checkpoint.resume, _checkpoints(config))
        notes = start.notes
        if start.path:
            checkpoint = CheckpointReader(start.path)
            check_continues(checkpoint, config, tokenizer_hash=inputs.tokenizer.content_hash)
            check_same_data(checkpoint, config, source_lengths=inputs.samples.lengths)
            notes += changed_settings(checkpoint.state["config"], config)
        return {"path": start.path and str(start.path), "notes": notes}

    chosen = ranks.gather(_agreed(ranks, choose))[0]
    return Start(chosen["path"] and Path(chosen["path"]), tuple(chosen["notes"]))


def _checkpoints(config: Config) -> Path:
    return Path(config.train.output) / "checkpoints"


@contextmanager
def _locked_output(config: Config) -> Iterator[None]:
    """The output directory, made if need be, and kept from other runs. Raises ConfigError."""
    output = Path(config.train.output)
    with _told_as_config_error(output), ExitStack() as held:
        output.mkdir(parents=True, exist_ok=True)
        held.enter_context(exclusive(output / ".lock"))
        release = held.pop_all()
    with release:
        yield


def _write_config(config: Config) -> None:
    """Put the resolved configuration beside the metrics. Raises ConfigError."""
    output = Path(config.train.output)
    with _told_as_config_error(output), atomic_file(output / "config.yaml") as stream:
        stream.write(config_to_yaml(config).encode())


@contextmanager
def _told_as_config_error(output: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise ConfigError(
            f"train.output: another run is writing to '{output}'; wait for it or choose another"
        ) from error
    except OSError as error:
        raise ConfigError(f"train.output: '{output}' cannot be written ({error.strerror}); choose another") from error


def _announce(
    config: Config,
    inputs: _Inputs,
    engine: Engine,
    layout: Layout,
    accumulation: int,
    start: Start,
    progress: Progress,
    console: Console,
) -> None:
    """The banner, and the record that opens this part of the metrics file."""
    held_out = inputs.held_out
    entropy = {o.name.lower(): unigram_entropy(held_out, o) for o in held_out.objectives}
    console.say(
        banner(
            config,
            device=str(engine.device),
            replicas=layout.data,
            accumulation=accumulation,
            num_ids=inputs.tokenizer.vocab_size,
            num_parameters=engine.num_parameters,
            start="; ".join(start.notes),
            entropy=entropy,
        )
    )
    console.record(
        {
            "kind": "start",
            **asdict(progress),
            "notes": start.notes,
            "unigram_entropy": entropy,
            "windows": held_out.num_windows,
            "replicas": layout.data,
            "parameters": engine.num_parameters,
            "versions": versions(),
        }
    )


def _loader(config: Config, inputs: _Inputs, engine: Engine, groups: Groups, progress: Progress) -> Loader:
    """This replica's steps from `progress` on. Raises ConfigError where its workers cannot be started."""
    place = {
        "consumed_samples": progress.samples,
        "dp_rank": groups.place.data,
        "dp_size": groups.layout.data,
        "pin_memory": engine.device.type == "cuda",
    }
    if config.data.workers:
        return ProcessLoader(config, inputs.row_options, **place)
    return StepLoader(
        inputs.samples,
        inputs.collate,
        global_batch_size=BatchSizes.of(config.train),
        micro_batch_size=config.train.micro_batch_size,
        prefetch=config.data.prefetch,
        **place,
    )


def _train(
    config: Config,
    inputs: _Inputs,
    engine: Engine,
    groups: Groups,
    ranks: Ranks,
    progress: Progress,
    run_id: str,
    console: Console,
) -> None:
    loader = _agreed(ranks, lambda: _loader(config, inputs, engine, groups, progress))
    validation_batches = partial(
        evaluation_batches,
        inputs.held_out,
        collate=inputs.collate,
        dp_rank=groups.place.data,
        dp_size=groups.layout.data,
        micro_batch_size=config.train.micro_batch_size,
    )

    def save(progress: Progress) -> None:
        path = save_checkpoint(
            _checkpoints(config),
            run_id=run_id,
            step=progress.step,
            fragments=engine.fragments(),
            shapes=engine.shapes,
            state={
                "progress": asdict(progress),
                "loss_scale": engine.loss_scale.state(),
                "config": config.model_dump(mode="json"),
                "tokenizer_hash": inputs.tokenizer.content_hash,
                "source_lengths": inputs.samples.lengths,
                "num_ids": inputs.tokenizer.vocab_size,
                "validation": console.last_validation,
                "versions": versions(),
            },
            ranks=ranks,
            attachments=_tokenizer_files(inputs.tokenizer),
        )
        console.say(f"saved {path}")

    trainer = Trainer(
        config,
        engine,
        loader,
        replicas=groups.data,
        probabilities=inputs.samples.probabilities,
        phase=inputs.samples.phase,
        progress=progress,
        validation_batches=validation_batches,
        objectives=inputs.held_out.objectives,
        record=console.record,
        save=save,
        check=lambda step: check_replicas(engine.copies(), step=step, groups=groups, ranks=ranks),
    )
    with loader:
        try:
            trainer.run()
        except (DivergedError, CheckpointError, ReplicaError):
            raise  # raised by all ranks alike
        except UserError as error:
            raise RankError(f"rank {ranks.rank}: {error}") from error


def _tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The tokenizer as attachments, so that a release can be made from a checkpoint alone."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "tokenizer"
        tokenizer.save(folder)
        return {str(path.relative_to(directory)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

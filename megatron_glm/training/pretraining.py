"""A pretraining run: put the parts together, start where the last run stopped, train.

Read it top to bottom for the order in which things are made; trainer.py holds the loop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from megatron_glm.checkpoint.probing import checkpoint_bytes, probe
from megatron_glm.checkpoint.together import told_by_rank
from megatron_glm.config.batching import BatchSizes
from megatron_glm.config.combinations import check_combinations
from megatron_glm.config.loading import config_to_yaml
from megatron_glm.config.schema import Config
from megatron_glm.data.batch import collate
from megatron_glm.data.dataset import HeldOutDataset, SampleDataset
from megatron_glm.data.fingerprint import source_fingerprints
from megatron_glm.data.loader import Loader, StepLoader, evaluation_batches
from megatron_glm.data.process_loader import ProcessLoader
from megatron_glm.data.sample_documents import SampleDocuments
from megatron_glm.data.unigram import unigram_entropy
from megatron_glm.errors import CheckpointError, ConfigError, RankError, UserError, is_of_machine
from megatron_glm.files import atomic_file
from megatron_glm.locking import exclusive, holder_of
from megatron_glm.model.sizes import parameter_shapes
from megatron_glm.parallel.groups import Groups, make_groups
from megatron_glm.parallel.layout import Layout
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.planning.rows import row_capacity, row_multiple
from megatron_glm.planning.stages import Division
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.loading import load_tokenizer
from megatron_glm.training.checkpoints.resuming import Start
from megatron_glm.training.checkpoints.rewind_file import RewindRecord
from megatron_glm.training.checkpoints.rewinding import Rewinder
from megatron_glm.training.checkpoints.saved_state import saved_state, tokenizer_files
from megatron_glm.training.checkpoints.saving import Saver
from megatron_glm.training.checkpoints.starting import Beginning, begin, checkpoints_of, choose
from megatron_glm.training.control.guard import Guard, watched
from megatron_glm.training.control.steering import Steering
from megatron_glm.training.control.stopping import End, forget_end, write_end
from megatron_glm.training.engines.engine import Engine, build_engine
from megatron_glm.training.engines.load_proof import prove_linked
from megatron_glm.training.engines.model_building import check_divides
from megatron_glm.training.engines.replica_check import ReplicaError, check_replicas
from megatron_glm.training.engines.stage_division import divide, saved_stages, stage_bounds
from megatron_glm.training.fault_points import FaultPoints, read_faults
from megatron_glm.training.guards.culprits import Culprits
from megatron_glm.training.guards.divergence import DivergedError, RewindWished
from megatron_glm.training.guards.mishaps import Mishaps
from megatron_glm.training.launchers import process_count
from megatron_glm.training.processes import distributed_processes
from megatron_glm.training.progress import Progress
from megatron_glm.training.reports.banner import banner, versions
from megatron_glm.training.reports.console import Console
from megatron_glm.training.same_everywhere import check_same_everywhere
from megatron_glm.training.trainer import Trainer


def pretrain(config: Config) -> None:
    """Run a configuration to its last step, in every process of the job.

    Raises:
        UserError: the run cannot start or go on; the same on all ranks, but for RankError.
    """
    started = time.monotonic()
    check_combinations(config)
    parallel = config.parallel
    layout = Layout.of(process_count(os.environ), tensor=parallel.tensor, pipeline=parallel.pipeline)
    accumulation = BatchSizes.of(config.train).accumulation(config.train.micro_batch_size, layout.data)
    with distributed_processes(threads=config.train.threads) as ranks, ExitStack() as held:
        # Processes of one machine see the same disks.
        tells = ranks.rank == 0 or os.environ["LOCAL_RANK"] == "0"
        inputs = _agreed(ranks, lambda: _Inputs(config, tells_sources=tells))
        check_same_everywhere(
            config,
            ranks,
            tokenizer_hash=inputs.tokenizer.content_hash,
            source_lengths=inputs.samples.lengths,
            source_hashes=inputs.source_hashes,
            held_out_windows=inputs.held_out.num_windows,
        )
        check_divides(config, inputs.tokenizer.vocab_size)
        leads = ranks.rank == 0
        _agreed(ranks, lambda: held.enter_context(_locked_output(config)) if leads else None)
        watch = held.enter_context(watched(config, rank=ranks.rank, started=started))
        start = _agreed_start(config, inputs, ranks)
        shapes = parameter_shapes(config.model, inputs.tokenizer.vocab_size)
        probe(checkpoints_of(config), bytes_of_one=checkpoint_bytes(shapes), ranks=ranks)
        groups = make_groups(layout)
        num_ids = inputs.tokenizer.vocab_size
        with told_by_rank(ranks):
            division = divide(
                config,
                num_ids,
                inputs.samples.samples,
                inputs.collate,
                groups=groups,
                ranks=ranks,
                saved=saved_stages(start.path) if parallel.pipeline > 1 else None,
            )
        engine = build_engine(config, num_ids, groups=groups, accumulation=accumulation, stages=division.stages)
        prove_linked(engine, ranks)
        beginning = begin(config, start, engine, groups=groups, ranks=ranks)
        progress = beginning.progress
        _agreed(ranks, lambda: _write_config(config) if leads else None)
        with Console(config, leads=leads, start_step=progress.step) as console:
            if leads:
                _announce(config, inputs, engine, layout, accumulation, division, beginning, console)
            guard = Guard(
                config,
                ranks,
                watch,
                layout=layout,
                device=engine.device,
                steering=Steering(config, beginning.saved.get("steering"), first_step=progress.step),
                progress=progress,
                record=console.record,
            )
            reason = _train(config, inputs, engine, groups, ranks, division, beginning, console, guard)
        end = End(progress.step, finished=progress.step >= config.train.steps, reason=reason)
        write_end(Path(config.train.output), end, leads=leads)


class _Inputs:
    """What a run reads: tokenizer, training samples, held-out windows, and what tells its sources from others."""

    def __init__(self, config: Config, *, tells_sources: bool):
        self.tokenizer: Tokenizer = load_tokenizer(config.tokenizer.path)
        self.samples = SampleDataset.open(config, self.tokenizer)
        self.held_out = HeldOutDataset.open(config, self.tokenizer)
        self.source_hashes = source_fingerprints(config) if tells_sources else ()
        self.row_options = {
            "pad_id": self.tokenizer.special.eos,
            "multiple": row_multiple(config),
            "capacity": row_capacity(config),
        }
        self.collate = partial(collate, **self.row_options)


def _agreed(ranks: Ranks, work: Callable[[], Any]) -> Any:
    """Do this rank's work; where it fails on any rank, all ranks raise the first one's error."""
    value, failure = None, None
    try:
        value = work()
    except UserError as error:
        failure = error
    failures = [told for told in ranks.gather(failure and [str(failure), is_of_machine(failure)]) if told]
    if failures:
        message, of_machine = failures[0]
        raise failure or UserError(message, of_machine=of_machine)
    return value


def _agreed_start(config: Config, inputs: _Inputs, ranks: Ranks) -> Start:
    """Rank 0's choice of a checkpoint, verified byte by byte and fit to be continued."""

    def chosen() -> dict | None:
        if ranks.rank != 0:
            return None
        hash_now = inputs.tokenizer.content_hash
        start = choose(
            config,
            tokenizer_hash=hash_now,
            source_lengths=inputs.samples.lengths,
            source_hashes=inputs.source_hashes,
        )
        rewind = start.rewind and start.rewind.model_dump()
        return {"path": _text(start.path), "notes": start.notes, "weights": _text(start.weights), "rewind": rewind}

    found = ranks.gather(_agreed(ranks, chosen))[0]
    rewind = found["rewind"] and RewindRecord(**found["rewind"])
    return Start(_path(found["path"]), tuple(found["notes"]), _path(found["weights"]), rewind)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


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
    with _told_as_config_error(output):
        forget_end(output)
        with atomic_file(output / "config.yaml") as stream:
            stream.write(config_to_yaml(config).encode())


@contextmanager
def _told_as_config_error(output: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise ConfigError(
            f"train.output: another run is writing to '{output}'; wait for it or choose another"
            f" (it is {holder_of(output / '.lock')})"
        ) from error
    except OSError as error:
        raise ConfigError(f"train.output: '{output}' cannot be written ({error.strerror}); choose another") from error


def _announce(
    config: Config,
    inputs: _Inputs,
    engine: Engine,
    layout: Layout,
    accumulation: int,
    division: Division,
    beginning: Beginning,
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
            division=division,
            start="\n".join(beginning.notes),
            entropy=entropy,
        )
    )
    console.record(
        {
            "kind": "start",
            **asdict(beginning.progress),
            "notes": beginning.notes,
            "unigram_entropy": entropy,
            "windows": held_out.num_windows,
            "replicas": layout.data,
            "stages": stage_bounds(division.stages),
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
        "skips": progress.skips,
        "pin_memory": engine.device.type == "cuda",
    }
    if config.data.workers:
        return ProcessLoader(config, inputs.row_options, lengths=inputs.samples.lengths, **place)
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
    division: Division,
    beginning: Beginning,
    console: Console,
    guard: Guard,
) -> str:
    progress, loaders = beginning.progress, ExitStack()
    faults = _agreed(ranks, lambda: FaultPoints(read_faults(os.environ), progress=progress))
    faults.plant_in_engine(engine)

    def open_loader() -> Loader:
        loaders.close()  # the one before, which is elsewhere
        loader = loaders.enter_context(_agreed(ranks, lambda: _loader(config, inputs, engine, groups, progress)))
        _agreed(ranks, lambda: faults.plant_in_loader(loader))
        return loader

    loader = open_loader()
    validation_batches = partial(
        evaluation_batches,
        inputs.held_out,
        collate=inputs.collate,
        dp_rank=groups.place.data,
        dp_size=groups.layout.data,
        micro_batch_size=config.train.micro_batch_size,
    )

    mishaps = Mishaps(
        config.train,
        beginning.saved.get("mishaps"),
        progress=progress,
        record=console.record,
        documents=Culprits(Path(config.train.output), SampleDocuments(config, inputs.samples), leads=ranks.rank == 0),
    )

    def state(progress: Progress) -> dict[str, Any]:
        return saved_state(
            config,
            progress,
            engine=engine,
            layout=groups.layout,
            stages=stage_bounds(division.stages),
            tokenizer=inputs.tokenizer,
            source_lengths=inputs.samples.lengths,
            source_hashes=inputs.source_hashes,
            steering=guard.steering.state(),
            mishaps=mishaps.state(),
            validation=console.last_validation,
        )

    rewinder = Rewinder(
        engine,
        mishaps,
        guard.steering,
        output=Path(config.train.output),
        directory=checkpoints_of(config),
        run_id=beginning.run_id,
        groups=groups,
        ranks=ranks,
        progress=progress,
        forget=console.forget,
        record=console.record,
    )

    def report(saved: dict[str, Any]) -> None:
        console.record(saved)
        rewinder.saved()

    saver = Saver(
        config.checkpoint,
        engine,
        directory=checkpoints_of(config),
        run_id=beginning.run_id,
        state=state,
        attachments=tokenizer_files(inputs.tokenizer),
        ranks=ranks,
        report=report,
    )

    def go_back(wish: RewindWished) -> Loader | None:
        return open_loader() if rewinder(wish) else None

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
        saver=saver,
        check=lambda step: check_replicas(engine.copies(), step=step, groups=groups, ranks=ranks),
        guard=guard,
        mishaps=mishaps,
        go_back=go_back,
    )
    with loaders, saver:
        try:
            return trainer.run()
        except (DivergedError, CheckpointError, ReplicaError, RankError):
            raise  # raised by all ranks alike, or told by one
        except UserError as error:
            raise RankError(f"rank {ranks.rank}: {error}") from error

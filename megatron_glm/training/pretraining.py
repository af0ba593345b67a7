"""A pretraining run: put the parts together, start where the last run stopped, train.

Read it top to bottom for the order in which things are made; assembly.py puts the trainer together, trainer.py is the
loop.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

from megatron_glm.checkpoint.probing import checkpoint_bytes, probe
from megatron_glm.command import tell
from megatron_glm.config.batching import BatchSizes
from megatron_glm.config.combinations import check_combinations
from megatron_glm.config.schema import Config
from megatron_glm.model.sizes import parameter_shapes
from megatron_glm.parallel.groups import make_groups
from megatron_glm.parallel.layout import Layout
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.parallel.together import agreed, told_by_rank
from megatron_glm.training.announcement import announce
from megatron_glm.training.assembly import train
from megatron_glm.training.checkpoints.chosen_start import choose_together
from megatron_glm.training.checkpoints.starting import begin, checkpoints_of
from megatron_glm.training.control.guard import Guard, Watch, watched
from megatron_glm.training.control.steering import Steering
from megatron_glm.training.control.stopping import End, write_end
from megatron_glm.training.engines.compilation import settle_compilation
from megatron_glm.training.engines.engine import build_engine
from megatron_glm.training.engines.load_proof import prove_linked
from megatron_glm.training.engines.model_building import check_divides
from megatron_glm.training.engines.stage_division import divide, saved_stages
from megatron_glm.training.inputs import Inputs
from megatron_glm.training.launchers import process_count
from megatron_glm.training.output import locked_output, write_config
from megatron_glm.training.prepared_run import PreparedRun
from megatron_glm.training.processes import distributed_processes
from megatron_glm.training.reports.console import Console
from megatron_glm.training.same_everywhere import check_same_everywhere


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
        leads = ranks.rank == 0
        inputs = _same_inputs(config, ranks)
        check_divides(config, inputs.tokenizer.vocab_size)
        agreed(ranks, lambda: held.enter_context(locked_output(config)) if leads else None)
        watch = held.enter_context(watched(config, rank=ranks.rank, started=started))
        run = _prepared(config, inputs, layout, accumulation, ranks, watch)
        agreed(ranks, lambda: write_config(config) if leads else None)
        progress = run.beginning.progress
        with Console(config, leads=leads, start_step=progress.step) as console:
            if leads:
                announce(run, console)
            reason = train(run, console, _guard(run, watch, console))
        end = End(progress.step, finished=progress.step >= config.train.steps, reason=reason)
        write_end(Path(config.train.output), end, leads=leads)


def _same_inputs(config: Config, ranks: Ranks) -> Inputs:
    """Tokenizer and data, which must be the same on every machine."""
    # Processes of one machine see the same disks.
    tells = ranks.rank == 0 or os.environ["LOCAL_RANK"] == "0"
    inputs = agreed(ranks, lambda: Inputs(config, tells_sources=tells))
    check_same_everywhere(
        config,
        ranks,
        tokenizer_hash=inputs.tokenizer.content_hash,
        source_lengths=inputs.samples.lengths,
        source_hashes=inputs.source_hashes,
        held_out_windows=inputs.held_out.num_windows,
    )
    return inputs


def _prepared(
    config: Config, inputs: Inputs, layout: Layout, accumulation: int, ranks: Ranks, watch: Watch
) -> PreparedRun:
    """The engine with the weights to begin with, after all that would stop a run later has been tried."""
    start = choose_together(config, inputs, ranks)
    num_ids = inputs.tokenizer.vocab_size
    shapes = parameter_shapes(config.model, num_ids)
    probe(checkpoints_of(config), bytes_of_one=checkpoint_bytes(shapes), ranks=ranks)
    groups = make_groups(layout)
    compilation = settle_compilation(config, ranks, say=tell, stopping=lambda: watch.signals.received)
    with told_by_rank(ranks):
        division = divide(
            compilation.config,
            num_ids,
            inputs.samples.samples,
            inputs.collate,
            groups=groups,
            ranks=ranks,
            saved=saved_stages(start.path) if layout.pipeline > 1 else None,
        )
    engine = build_engine(compilation.config, num_ids, groups=groups, accumulation=accumulation, stages=division.stages)
    prove_linked(engine, ranks)
    beginning = begin(config, start, engine, groups=groups, ranks=ranks)
    return PreparedRun(config, inputs, ranks, groups, accumulation, division, compilation, engine, beginning)


def _guard(run: PreparedRun, watch: Watch, console: Console) -> Guard:
    beginning = run.beginning
    return Guard(
        run.config,
        run.ranks,
        watch,
        layout=run.groups.layout,
        device=run.engine.device,
        steering=Steering(run.config, beginning.saved.get("steering"), first_step=beginning.progress.step),
        progress=beginning.progress,
        record=console.record,
    )

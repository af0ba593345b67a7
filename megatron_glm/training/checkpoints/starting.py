"""The beginning of a run, or of its next part: what it starts from, and the proof that it holds that."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from megatron_glm.byte_sizes import size_text
from megatron_glm.checkpoint.description import layout_text
from megatron_glm.checkpoint.locating import CHECKPOINTS
from megatron_glm.checkpoint.opening import open_weights
from megatron_glm.checkpoint.probing import checkpoint_bytes
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.source import ValueSource, WeightsOnly
from megatron_glm.checkpoint.training_state import check_state
from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.schema import Config
from megatron_glm.counting import count_text
from megatron_glm.data.skip_list import SkipList
from megatron_glm.errors import CheckpointError, ConfigError
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.parallel.together import told_by_rank
from megatron_glm.training.checkpoints.changed_settings import changed_settings, check_changes
from megatron_glm.training.checkpoints.resuming import Start, check_continues, check_same_model, choose_start
from megatron_glm.training.checkpoints.rewind_file import kept_rewind
from megatron_glm.training.checkpoints.same_data import check_same_data
from megatron_glm.training.engines.canonical_state import check_same_shapes
from megatron_glm.training.engines.engine import Engine
from megatron_glm.training.engines.load_proof import prove_loaded
from megatron_glm.training.progress import Progress


@dataclass(frozen=True)
class Beginning:
    """Where a run stands before its first step.

    Attributes:
        saved: state of the checkpoint that is continued; empty where none is.
        notes: what to say about it.
    """

    progress: Progress
    run_id: str
    saved: Mapping[str, Any]
    notes: tuple[str, ...]


def checkpoints_of(config: Config) -> Path:
    """Where a run keeps its checkpoints."""
    return Path(config.train.output) / CHECKPOINTS


def choose(
    config: Config, *, tokenizer_hash: str, source_lengths: Sequence[int], source_hashes: Sequence[str]
) -> Start:
    """What the configuration asks to start from, verified byte by byte and fit for it; one process calls this.

    Raises:
        CheckpointError, TokenizerError, ConfigError: there is no such thing, or it would be another run.
    """
    settings = config.checkpoint
    start = choose_start(settings.resume, checkpoints_of(config), strict=settings.strict)
    if start.path:
        checkpoint = CheckpointReader(start.path, verify=False)  # it was just verified
        check_state(checkpoint.state, start.path, needs=("progress", "config"))
        check_continues(checkpoint, config, tokenizer_hash=tokenizer_hash)
        _check_saved_config(checkpoint)
        check_same_data(checkpoint, config, source_lengths=source_lengths, source_hashes=source_hashes)
        changes = changed_settings(checkpoint.state["config"], config)
        check_changes(start.path, changes, settings.allow_changes)
        told = ("changed: " + ", ".join(map(str, changes)),) if changes else ()
        return _with_rewind(replace(start, notes=start.notes + told), checkpoint, Path(config.train.output))
    if settings.init_from is None:
        return start
    source = open_weights(Path(settings.init_from), verify=True)
    if isinstance(source, CheckpointReader):
        check_same_model(source, config, tokenizer_hash=tokenizer_hash)
    return replace(start, weights=source.path, notes=(*start.notes, f"with the weights of {source.path}"))


def _with_rewind(start: Start, checkpoint: CheckpointReader, output: Path) -> Start:
    """What the run has decided after the checkpoint was saved; without the file it would decide so again."""
    try:
        rewind = kept_rewind(output, run_id=checkpoint.run_id, step=checkpoint.step)
    except CheckpointError as error:
        return replace(start, notes=(*start.notes, f"passed over {error}"))
    if rewind is None:
        return start
    left_out = ", ".join(f"{first} to {end - 1}" for first, end in rewind.skip_samples)
    told = f"back at step {rewind.step} after a rewind that no checkpoint holds yet: without the samples {left_out}"
    return replace(start, notes=(*start.notes, told), rewind=rewind)


def _check_saved_config(checkpoint: CheckpointReader) -> None:
    try:
        config_from_tree(checkpoint.state["config"])
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint.path}: its state holds no usable configuration ({error})") from error


def begin(config: Config, start: Start, engine: Engine, *, groups: Groups, ranks: Ranks) -> Beginning:
    """Load what was chosen; all ranks call this.

    Raises:
        CheckpointError: the parameters are not this model's, or do not arrive as they were saved.
    """
    if start.path:
        with told_by_rank(ranks):  # each machine reads for itself
            checkpoint = CheckpointReader(start.path, verify=False)
        progress = take_up(checkpoint, engine, groups=groups, ranks=ranks)
        decided = start.rewind.skip_samples if start.rewind else ()
        progress.skip_samples = SkipList.of([*progress.skip_samples, *config.data.skip_samples, *decided]).ranges
        state = dict(checkpoint.state)
        if start.rewind:
            state["mishaps"] = {**state["mishaps"], "rewinds": start.rewind.rewinds}
        what = f"both moments of step {progress.step}, saved by {layout_text(checkpoint.state)}"
        notes = (*start.notes, _report(checkpoint, what, ranks), *_nothing_left(config, progress))
        return Beginning(progress, checkpoint.run_id, state, notes)
    run_id = ranks.gather(uuid.uuid4().hex)[0]
    progress = Progress(skip_samples=SkipList.of(config.data.skip_samples).ranges)
    if start.weights is None:
        return Beginning(progress, run_id, {}, start.notes)
    with told_by_rank(ranks):
        source = open_weights(start.weights, verify=False)
    if isinstance(source, CheckpointReader):
        source = WeightsOnly.of_checkpoint(source)
    _load(engine, source, step=0, ranks=ranks)
    prove_loaded(engine, source, step=0, groups=groups, ranks=ranks)
    return Beginning(progress, run_id, {}, (*start.notes, _report(source, "no moments, the optimizer is new", ranks)))


def take_up(checkpoint: CheckpointReader, engine: Engine, *, groups: Groups, ranks: Ranks) -> Progress:
    """Put the weights, moments and loss scale of a checkpoint that one rank has verified into the engine of every rank.

    Returns where its run stood.

    Raises:
        CheckpointError: the parameters are not this model's, or do not arrive as they were saved; on all ranks.
        RankError: this rank cannot read it.
    """
    progress = Progress(**checkpoint.state["progress"])
    _load(engine, checkpoint, step=progress.updates, ranks=ranks)
    engine.loss_scale.load(checkpoint.state.get("loss_scale"))
    prove_loaded(engine, checkpoint, step=progress.step, groups=groups, ranks=ranks)
    return progress


def _load(engine: Engine, source: ValueSource, *, step: int, ranks: Ranks) -> None:
    check_same_shapes(source.shapes, engine.shapes)  # of all ranks alike
    with told_by_rank(ranks):
        engine.load(source, step=step)


def _nothing_left(config: Config, progress: Progress) -> tuple[str, ...]:
    """What to say of a run that has made its last step: without it a start would end at once and not say why."""
    steps = config.train.steps
    if progress.step < steps:
        return ()
    return (f"nothing is left to do: step {progress.step} is made, train.steps is {steps}; a larger one goes on",)


def _report(source: ValueSource, what: str, ranks: Ranks) -> str:
    elements = sum(map(prod, source.shapes.values()))
    return (
        f"loaded {len(source.shapes)} parameters with {elements:,} weights"
        f" ({size_text(checkpoint_bytes(source.shapes))} with moments) and {what};"
        f" their hashes on {count_text(ranks.size, 'rank')} are those of the source"
    )

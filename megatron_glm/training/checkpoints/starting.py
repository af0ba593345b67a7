"""The beginning of a run, or of its next part: what it starts from, and the proof that it holds that."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from megatron_glm.checkpoint.description import layout_text, size_text
from megatron_glm.checkpoint.locating import CHECKPOINTS
from megatron_glm.checkpoint.opening import open_weights
from megatron_glm.checkpoint.probing import checkpoint_bytes
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.source import ValueSource, WeightsOnly
from megatron_glm.checkpoint.training_state import check_state
from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.schema import Config
from megatron_glm.data.skip_list import SkipList
from megatron_glm.errors import CheckpointError, ConfigError
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.training.checkpoints.changed_settings import changed_settings, check_changes
from megatron_glm.training.checkpoints.resuming import Start, check_continues, check_same_model, choose_start
from megatron_glm.training.checkpoints.same_data import check_same_data
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
        return replace(start, notes=start.notes + told)
    if settings.init_from is None:
        return start
    source = open_weights(Path(settings.init_from), verify=True)
    if isinstance(source, CheckpointReader):
        check_same_model(source, config, tokenizer_hash=tokenizer_hash)
    return replace(start, weights=source.path, notes=(*start.notes, f"with the weights of {source.path}"))


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
        checkpoint, progress = take_up(start.path, engine, groups=groups, ranks=ranks)
        progress.skip_samples = SkipList.of([*progress.skip_samples, *config.data.skip_samples]).ranges
        what = f"both moments of step {progress.step}, saved by {layout_text(checkpoint.state)}"
        notes = (*start.notes, _report(checkpoint, what, ranks))
        return Beginning(progress, checkpoint.run_id, checkpoint.state, notes)
    run_id = ranks.gather(uuid.uuid4().hex)[0]
    progress = Progress(skip_samples=SkipList.of(config.data.skip_samples).ranges)
    if start.weights is None:
        return Beginning(progress, run_id, {}, start.notes)
    source = open_weights(start.weights, verify=False)
    if isinstance(source, CheckpointReader):
        source = WeightsOnly.of_checkpoint(source)
    engine.load(source, step=0)
    prove_loaded(engine, source, step=0, groups=groups, ranks=ranks)
    return Beginning(progress, run_id, {}, (*start.notes, _report(source, "no moments, the optimizer is new", ranks)))


def take_up(path: Path, engine: Engine, *, groups: Groups, ranks: Ranks) -> tuple[CheckpointReader, Progress]:
    """Put the weights, moments and loss scale of a checkpoint that one rank has verified into the engine of every rank.

    Raises:
        CheckpointError: the parameters are not this model's, or do not arrive as they were saved; on all ranks.
    """
    checkpoint = CheckpointReader(path, verify=False)
    progress = Progress(**checkpoint.state["progress"])
    engine.load(checkpoint, step=progress.updates)
    engine.loss_scale.load(checkpoint.state.get("loss_scale"))
    prove_loaded(engine, checkpoint, step=progress.step, groups=groups, ranks=ranks)
    return checkpoint, progress


def _report(source: ValueSource, what: str, ranks: Ranks) -> str:
    elements = sum(map(prod, source.shapes.values()))
    return (
        f"loaded {len(source.shapes)} parameters with {elements:,} weights"
        f" ({size_text(checkpoint_bytes(source.shapes))} with moments) and {what};"
        f" their hashes on {ranks.size} ranks are those of the source"
    )

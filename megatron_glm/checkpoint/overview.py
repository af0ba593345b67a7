"""What a checkpoint is, when, how far and how good: read from what describes its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from megatron_glm.byte_sizes import size_text
from megatron_glm.checkpoint.description import layout_text
from megatron_glm.checkpoint.format import PARAMETERS, STATE
from megatron_glm.checkpoint.index import Index
from megatron_glm.checkpoint.manifest import Manifest, read_manifest
from megatron_glm.checkpoint.training_state import SavedConfig, TrainingState, Validation, check_state
from megatron_glm.errors import CheckpointError
from megatron_glm.json_reading import json_object


@dataclass(frozen=True)
class Overview:
    """What a checkpoint tells of itself, as far as that is what was saved, and the first thing that is not."""

    manifest: Manifest
    state: TrainingState
    shapes: Mapping[str, tuple[int, ...]] | None
    damage: str | None


def overview(path: Path) -> Overview:
    """What the checkpoint tells of itself, found without reading its tensors.

    Raises:
        CheckpointError: it has no manifest that can be read.
    """
    manifest = read_manifest(path)
    damages, state, shapes = [], TrainingState(), None
    try:
        manifest.check_files(path, hashes=False)
    except CheckpointError as error:
        damages.append(str(error))
    try:
        state = check_state(json_object(_content(path, manifest, STATE)), path)
    except (CheckpointError, ValueError) as error:
        damages.append(f"{path / STATE}: {error}" if isinstance(error, ValueError) else str(error))
    try:
        index = Index.from_json(_content(path, manifest, PARAMETERS), str(path / PARAMETERS))
        index.check_room(manifest.sizes, str(path / PARAMETERS))
        shapes = index.shapes
    except CheckpointError as error:
        damages.append(str(error))
    return Overview(manifest, state, shapes, damages[0] if damages else None)


def _content(path: Path, manifest: Manifest, name: str) -> bytes:
    """A file that describes the others, if it is what was saved."""
    try:
        if name not in manifest.files:
            raise CheckpointError(f"{path / name}: not in the manifest")
        manifest.check_hash(path, name)
        return (path / name).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path / name}: {error.strerror}") from error


def facts(found: Overview) -> Iterator[tuple[str, str]]:
    """What a person wants to know, each with its name."""
    manifest, state = found.manifest, found.state
    progress, layout, config = state.progress, state.layout, state.config or SavedConfig()
    yield "run", manifest.run_id
    yield "saved", state.saved_at or "at a time that was not recorded"
    yield "step", f"{manifest.step}" + (f" of {config.train.steps}" if config.train.steps is not None else "")
    if progress:
        yield "seen", f"{progress.samples:,} samples, {progress.tokens:,} tokens"
    yield "layout", layout_text({"layout": layout.model_dump()} if layout else {})
    yield "loss", _loss(state.validation)
    if config.model.num_layers is not None and found.shapes is not None:
        model, shapes = config.model, found.shapes
        yield (
            "model",
            f"{model.num_layers} layers × {model.hidden_size}, {model.num_attention_heads} heads,"
            f" {len(shapes)} parameters, {sum(map(prod, shapes.values())):,} weights",
        )
    yield "tokenizer", f"{_or_unknown(state.num_ids)} ids, hash {_or_unknown(state.tokenizer_hash)[:12]}"
    if state.versions:
        yield "versions", "  ".join(f"{name} {version}" for name, version in state.versions.items())
    sizes = [record.size for record in manifest.files.values()]
    yield "size", f"{size_text(sum(sizes))} in {len(sizes)} files"


def _loss(validation: Validation | None) -> str:
    if validation is None:
        return "none: no validation yet"
    parts = ", ".join(f"{name} {_mean(value)}" for name, value in validation.losses.items())
    return f"{_mean(validation.loss)} ({parts}), validation at step {_or_unknown(validation.step)}"


def _mean(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.3f}"


def _or_unknown(value: object) -> str:
    return "?" if value is None else str(value)

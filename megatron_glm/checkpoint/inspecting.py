"""`glm inspect-checkpoint`: what a checkpoint is, without reading its tensors."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from megatron_glm.checkpoint.description import layout_text, size_text
from megatron_glm.checkpoint.format import PARAMETERS, STATE
from megatron_glm.checkpoint.locating import checkpoints_at
from megatron_glm.checkpoint.manifest import Manifest, read_manifest
from megatron_glm.command import EXIT_USER_ERROR
from megatron_glm.errors import CheckpointError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", type=Path, help="a checkpoint, a directory of checkpoints, or the output of a run; several: a line each"
    )
    parser.epilog = "Names and sizes of its files are checked, and the descriptions read; verify-checkpoint reads all."


def run(args: argparse.Namespace) -> int:
    paths = checkpoints_at(args.path)
    if len(paths) > 1:
        damaged = [reason for path in paths if (reason := _print_line(path))]
        return EXIT_USER_ERROR if damaged else 0
    manifest = read_manifest(paths[0])
    lines = dict(_facts(paths[0], manifest))
    damage = _damage(paths[0], manifest)
    lines["whole"] = f"NO: {damage}" if damage else "names and sizes agree; glm verify-checkpoint reads the contents"
    width = max(map(len, lines))
    for name, text in lines.items():
        print(f"{name:>{width}}  {text}")
    return EXIT_USER_ERROR if damage else 0


def _print_line(path: Path) -> str | None:
    """One line for a checkpoint; returns what is wrong with it."""
    try:
        manifest = read_manifest(path)
        facts, damage = dict(_facts(path, manifest)), _damage(path, manifest)
    except CheckpointError as error:
        facts, damage = {}, str(error)
    told = [f"{name} {facts[name]}" for name in ("saved", "loss", "size") if name in facts]
    print("  ".join([path.name, *told, f"NOT WHOLE: {damage}" if damage else "sizes agree"]))
    return damage


def _damage(path: Path, manifest: Manifest) -> str | None:
    try:
        manifest.check_files(path, hashes=False)
    except CheckpointError as error:
        return str(error)
    return None


def _facts(path: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    state, parameters = _json(path / STATE), _json(path / PARAMETERS).get("parameters", {})
    config = state.get("config") or {}
    progress, train, model = (tree or {} for tree in (state.get("progress"), config.get("train"), config.get("model")))
    yield "checkpoint", str(path)
    yield "run", manifest.run_id
    yield "saved", str(state.get("saved_at", "at a time that was not recorded"))
    yield "step", f"{manifest.step}" + (f" of {train['steps']}" if "steps" in train else "")
    if progress:
        yield "seen", f"{progress.get('samples', 0):,} samples, {progress.get('tokens', 0):,} tokens"
    yield "layout", layout_text(state)
    yield "loss", _loss(state.get("validation"))
    if model:
        yield (
            "model",
            f"{model.get('num_layers')} layers × {model.get('hidden_size')}, {model.get('num_attention_heads')} heads,"
            f" {len(parameters)} parameters, {_weights(parameters):,} weights",
        )
    yield "tokenizer", f"{state.get('num_ids', '?')} ids, hash {str(state.get('tokenizer_hash', '?'))[:12]}"
    if versions := state.get("versions"):
        yield "versions", "  ".join(f"{name} {version}" for name, version in versions.items())
    sizes = [record.size for record in manifest.files.values()]
    yield "size", f"{size_text(sum(sizes))} in {len(sizes)} files"


def _loss(validation: Mapping[str, Any] | None) -> str:
    if not validation:
        return "none: no validation yet"
    parts = ", ".join(f"{name} {value:.3f}" for name, value in validation.get("losses", {}).items())
    loss = validation.get("loss")
    shown = "not finite" if loss is None else f"{loss:.3f}"
    return f"{shown} ({parts}), validation at step {validation.get('step', '?')}"


def _weights(parameters: Mapping[str, Any]) -> int:
    return sum(prod(entry["shape"]) for entry in parameters.values())


def _json(path: Path) -> Mapping[str, Any]:
    """What a file of the checkpoint holds; nothing where it is damaged, which is told elsewhere."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}

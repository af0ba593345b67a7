"""From a checkpoint to a release: written under a temporary name, verified, and only then there.

config.json  generation_config.json     what transformers has to know
model.safetensors                       or several files and their index
glm_tokenizer.json  tokenizer.*         the tokenizer of the run, as it is
tokenizer_config.json
*_glm.py                                code for transformers, needs nothing of ours
README.md  manifest.json                the model card; sizes and hashes
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from megatron_glm import __version__
from megatron_glm.checkpoint.locating import locate_checkpoint
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.training_state import check_state
from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.schema import Config
from megatron_glm.errors import CheckpointError, ConfigError
from megatron_glm.files import atomic_directory
from megatron_glm.model.precision import TORCH_DTYPES
from megatron_glm.release.card import model_card
from megatron_glm.release.description import generation_config, model_config, tokenizer_config
from megatron_glm.release.manifest import record_files, write_manifest
from megatron_glm.release.verification import verify_release
from megatron_glm.release.weights import check_shapes, write_weights
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.loading import load_tokenizer

TEMPLATES = Path(__file__).parent / "templates"
_TOKENIZER_FOLDER = "tokenizer/"


def publish_release(
    checkpoint: Path,
    output: Path,
    *,
    dtype: str,
    max_shard_bytes: int,
    verify: bool,
    say: Callable[[str], None],
    templates: Path = TEMPLATES,
) -> None:
    """Write the release of a checkpoint to `output`.

    Args:
        checkpoint: of a step, or a directory of checkpoints or the output of a run: the newest whole one is taken.
        dtype: fp32, bf16 or fp16.
        say: takes lines about what was done.
        templates: the code for transformers that goes into the release.

    Raises:
        CheckpointError: no whole checkpoint, an output that is not empty, or a release that failed its
            verification; nothing is left behind.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise CheckpointError(f"--output: {output} exists and is not empty; choose another directory")
    reader = CheckpointReader(_find(checkpoint))
    check_state(reader.state, reader.path, needs=("config",))
    config = _config(reader)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_directory(output) as directory:
            tokenizer = _write_tokenizer(directory, reader)
            # Refuses weights that are not those of the configuration before gigabytes are written.
            check_shapes(reader.shapes, config.model, tokenizer.vocab_size, reader.path)
            write_weights(directory, reader, TORCH_DTYPES[dtype], max_shard_bytes)
            _write_descriptions(directory, reader, config, tokenizer, dtype, templates)
            write_manifest(directory, run_id=reader.run_id, step=reader.step, versions=_versions(reader))
            if verify:
                say(verify_release(directory, reader, config, tokenizer, TORCH_DTYPES[dtype]))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"--output: {output} cannot be written: {error}") from error
    say(f"released step {reader.step} of {reader.path} to {output}")


def _find(checkpoint: Path) -> Path:
    try:
        return locate_checkpoint(checkpoint)
    except CheckpointError as error:
        raise CheckpointError(f"--checkpoint: {error}") from error


def _config(reader: CheckpointReader) -> Config:
    try:
        return config_from_tree(reader.state["config"])
    except (KeyError, ConfigError) as error:
        raise CheckpointError(f"{reader.path}: its state holds no usable configuration ({error})") from error


def _write_tokenizer(directory: Path, reader: CheckpointReader) -> Tokenizer:
    """Put the tokenizer's files into the release, and open it from there."""
    for name, content in reader.attachments().items():
        if name.startswith(_TOKENIZER_FOLDER):
            (directory / os.path.basename(name)).write_bytes(content)
    tokenizer = load_tokenizer(directory)
    if tokenizer.content_hash != reader.state.get("tokenizer_hash", tokenizer.content_hash):
        raise CheckpointError(f"{reader.path}: its tokenizer is not the one that its state names")
    return tokenizer


def _write_descriptions(
    directory: Path, reader: CheckpointReader, config: Config, tokenizer: Tokenizer, dtype: str, templates: Path
) -> None:
    """All that transformers and people read beside the weights."""
    _write_json(directory / "config.json", model_config(config, tokenizer, dtype))
    _write_json(directory / "generation_config.json", generation_config(tokenizer))
    _write_json(directory / "tokenizer_config.json", tokenizer_config())
    for template in sorted(templates.glob("*_glm.py")):
        shutil.copyfile(template, directory / template.name)
    card = model_card(reader, config, tokenizer, dtype, record_files(directory))
    (directory / "README.md").write_text(card, encoding="utf-8")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _versions(reader: CheckpointReader) -> dict[str, str]:
    """What trained the model, and what made the release of it."""
    trained = {f"trained with {name}": str(text) for name, text in reader.state.get("versions", {}).items()}
    released = {"megatron_glm": __version__}
    for package in ("torch", "safetensors", "transformers"):
        try:
            released[package] = version(package)
        except PackageNotFoundError:  # transformers is optional
            continue
    return trained | released

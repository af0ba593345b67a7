"""What a checkpoint holds beside weights and moments: all that a resume, a release or a reader needs to know."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from megatron_glm.config.schema import Config
from megatron_glm.parallel.layout import Layout
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.training.engines.engine import Engine
from megatron_glm.training.progress import Progress
from megatron_glm.training.reports.banner import versions


def saved_state(
    config: Config,
    progress: Progress,
    *,
    engine: Engine,
    layout: Layout,
    stages: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    source_lengths: Sequence[int],
    source_hashes: Sequence[str],
    steering: Mapping[str, Any],
    mishaps: Mapping[str, Any],
    validation: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The content of state.json.

    Args:
        layout: told to readers; no resume asks for it.
        stages: first layer of each, and the one after its last; a resume with as many stages keeps them.
        source_lengths: stream tokens of each source.
        source_hashes: what tells its documents from others.
        steering: state of the learning rate.
        mishaps: state of what judges the steps.
        validation: the newest record, if any.
    """
    return {
        "saved_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "progress": asdict(progress),
        "loss_scale": engine.loss_scale.state(),
        "steering": steering,
        "mishaps": mishaps,
        "layout": {**asdict(layout), "zero_stage": config.parallel.zero_stage},
        "stages": stages,
        "config": config.model_dump(mode="json"),
        "tokenizer_hash": tokenizer.content_hash,
        "source_lengths": source_lengths,
        "source_hashes": source_hashes,
        "num_ids": tokenizer.vocab_size,
        "validation": validation,
        "versions": versions(),
    }


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The tokenizer as attachments, so that a release can be made from a checkpoint alone."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "tokenizer"
        tokenizer.save(folder)
        return {str(path.relative_to(directory)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

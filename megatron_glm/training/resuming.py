"""Where a run starts: the choice of a checkpoint, and whether it may be continued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_glm.checkpoint.discovery import scan_checkpoints
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.schema import Config
from megatron_glm.errors import CheckpointError, TokenizerError

_OF_EACH_START = ("checkpoint.resume", "train.output")


@dataclass(frozen=True)
class Start:
    """The checkpoint to continue, if any, and what to say about the choice."""

    path: Path | None
    notes: tuple[str, ...]


def choose_start(resume: str, checkpoints: Path) -> Start:
    """What `checkpoint.resume` asks for.

    Args:
        resume: `auto` (the newest whole checkpoint, else from scratch), `must` (the newest, else an
            error), `never`, or the path of a checkpoint or of a directory of checkpoints.

    Raises:
        CheckpointError: a checkpoint was asked for and there is none; `never` with checkpoints there.
    """
    if resume == "never":
        if scan_checkpoints(checkpoints).newest:
            raise CheckpointError(
                f"checkpoint.resume: 'never', but {checkpoints} holds checkpoints; choose another train.output"
            )
        return Start(None, ("from scratch",))
    if resume not in ("auto", "must"):
        path = Path(resume)
        if not path.is_dir():
            raise CheckpointError(
                f"checkpoint.resume: '{resume}' is no directory; allowed: auto, must, never, or a checkpoint's path"
            )
        if (path / "manifest.json").exists():
            return Start(path, (f"from {path}",))
        checkpoints = path
    scan = scan_checkpoints(checkpoints, hashes=True)
    notes = [f"passed over {rejected.path}: {rejected.reason}" for rejected in scan.rejected]
    if scan.newest:
        return Start(scan.newest, (*notes, f"from {scan.newest}"))
    if resume != "auto":
        raise CheckpointError(
            f"checkpoint.resume: '{resume}', but {checkpoints} holds no whole checkpoint"
            + (f" ({'; '.join(notes)})" if notes else "")
            + "; start with checkpoint.resume=auto to train from scratch"
        )
    return Start(None, (*notes, "from scratch"))


def check_continues(checkpoint: CheckpointReader, config: Config, *, tokenizer_hash: str) -> None:
    """Raises TokenizerError or CheckpointError where continuing would silently be another run."""
    saved = checkpoint.state
    if saved["tokenizer_hash"] != tokenizer_hash:
        raise TokenizerError(
            f"{checkpoint.path}: trained with the tokenizer {saved['tokenizer_hash']}, but tokenizer.path holds"
            f" {tokenizer_hash}; use the tokenizer of the checkpoint (it lies in its folder tokenizer/)"
        )
    seed, seed_now = saved["config"]["train"]["seed"], config.train.seed
    if seed != seed_now:
        raise CheckpointError(
            f"{checkpoint.path}: trained with train.seed {seed}, not {seed_now}:"
            " the order of the data and the masks would change; set the seed back"
        )
    heads, heads_now = saved["config"]["model"]["num_attention_heads"], config.model.num_attention_heads
    if heads != heads_now:  # no shape of a parameter would tell
        raise CheckpointError(
            f"{checkpoint.path}: trained with model.num_attention_heads {heads}, not {heads_now}:"
            " the same weights would be another model; set it back"
        )


def changed_settings(saved: Mapping[str, Any], config: Config) -> tuple[str, ...]:
    """What a continued run does otherwise than the one that saved: 'changed: train.steps 100 → 200, …', or nothing.

    Most settings may change, and those of the data from now on; but nobody should find out from the curves.
    """
    # Through the schema: settings that are newer than the checkpoint had their defaults.
    before, now = (_flat(each.model_dump(mode="json")) for each in (config_from_tree(saved), config))
    changes = [
        f"{name} {before.get(name)} → {value}"
        for name, value in now.items()
        if before.get(name) != value and name not in _OF_EACH_START
    ]
    return ("changed: " + ", ".join(changes),) if changes else ()


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted name; a list is one value, without what its items leave open."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": _given(value)}
    return flat


def _given(value: Any) -> Any:
    if isinstance(value, list):
        return [_given(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _given(item) for key, item in value.items() if item is not None}
    return value

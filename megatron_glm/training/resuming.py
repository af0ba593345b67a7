"""Where a run starts: the choice of a checkpoint, and whether it may be continued."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from megatron_glm.checkpoint.discovery import scan_checkpoints
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.errors import CheckpointError, TokenizerError


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


def check_continues(checkpoint: CheckpointReader, *, tokenizer_hash: str, seed: int) -> None:
    """Raises TokenizerError or CheckpointError where continuing would silently be another run."""
    saved = checkpoint.state
    if saved["tokenizer_hash"] != tokenizer_hash:
        raise TokenizerError(
            f"{checkpoint.path}: trained with the tokenizer {saved['tokenizer_hash']}, but tokenizer.path holds"
            f" {tokenizer_hash}; use the tokenizer of the checkpoint (it lies in its folder tokenizer/)"
        )
    if saved["config"]["train"]["seed"] != seed:
        raise CheckpointError(
            f"{checkpoint.path}: trained with train.seed {saved['config']['train']['seed']}, not {seed}:"
            " the order of the data and the masks would change; set the seed back"
        )

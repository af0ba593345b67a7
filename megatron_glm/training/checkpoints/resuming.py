"""Where a run starts: the choice of a checkpoint, and whether it may be continued."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from megatron_glm.checkpoint.discovery import scan_checkpoints
from megatron_glm.checkpoint.format import MANIFEST
from megatron_glm.checkpoint.manifest import read_manifest, verify_checkpoint
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.training_state import check_state
from megatron_glm.config.schema import Config
from megatron_glm.errors import CheckpointError, TokenizerError
from megatron_glm.training.checkpoints.rewind_file import RewindRecord


@dataclass(frozen=True)
class Start:
    """The checkpoint to continue, or the weights to begin with, if any, and what to say about the choice.

    Attributes:
        rewind: one that the checkpoint does not know.
    """

    path: Path | None
    notes: tuple[str, ...]
    weights: Path | None = None
    rewind: RewindRecord | None = None


def choose_start(resume: str, checkpoints: Path, *, strict: bool = False) -> Start:
    """What `checkpoint.resume` asks for; every byte of the chosen checkpoint is verified.

    Args:
        resume: `auto` (the newest whole checkpoint, else from scratch), `must` (the newest, else an
            error), `never`, or the path of a checkpoint or of a directory of checkpoints.
        checkpoints: of the run.
        strict: a damaged checkpoint is an error, instead of being passed over for the one before it.

    Raises:
        CheckpointError: a checkpoint was asked for and there is none; `never` with checkpoints there; one to which
            the run would go back behind its own newer ones.
    """
    if resume == "never":
        if scan_checkpoints(checkpoints).newest:
            raise CheckpointError(
                f"checkpoint.resume: 'never', but {checkpoints} holds checkpoints; choose another train.output"
            )
        return Start(None, ("from scratch",))
    directory = checkpoints
    if resume not in ("auto", "must"):
        directory = Path(resume)
        if not directory.is_dir():
            raise CheckpointError(
                f"checkpoint.resume: '{resume}' is no directory; allowed: auto, must, never, or a checkpoint's path"
            )
        if (directory / MANIFEST).exists():
            verify_checkpoint(directory)
            _check_is_newest(directory, checkpoints)
            return Start(directory, (f"from {directory}",))
    scan = scan_checkpoints(directory, hashes=True)
    notes = [f"passed over {rejected.path}: {rejected.reason}" for rejected in scan.rejected]
    if strict and scan.rejected:
        raise CheckpointError(
            f"{scan.rejected[0].path}: {scan.rejected[0].reason}; checkpoint.strict passes over none: remove it, or"
            " start without strict",
            of_machine=scan.rejected[0].of_machine,
        )
    if scan.newest:
        if directory.resolve() != checkpoints.resolve():
            _check_is_newest(scan.newest, checkpoints)
        return Start(scan.newest, (*notes, f"from {scan.newest}"))
    if scan.rejected or resume != "auto":  # damaged ones are no reason to begin anew without being told to
        advice = "move them away, or choose another train.output" if scan.rejected else "checkpoint.resume=auto"
        raise CheckpointError(
            f"checkpoint.resume: '{resume}', but {directory} holds no whole checkpoint"
            + (f" ({'; '.join(notes)})" if notes else "")
            + f"; to train from scratch: {advice}",
            of_machine=any(rejected.of_machine for rejected in scan.rejected),
        )
    return Start(None, ("from scratch",))


def _check_is_newest(chosen: Path, checkpoints: Path) -> None:
    """A run that went back and left its newer checkpoints would continue from those at its next start."""
    newest = scan_checkpoints(checkpoints).newest
    step, own = read_manifest(chosen).step, newest and read_manifest(newest).step
    if own and own > step:
        raise CheckpointError(
            f"checkpoint.resume: {checkpoints} holds step {own}, newer than step {step} of '{chosen}', and the next"
            " start would continue from it; resume it, move what is newer away, or choose another train.output"
        )


def check_same_model(checkpoint: CheckpointReader, config: Config, *, tokenizer_hash: str) -> None:
    """Raises TokenizerError or CheckpointError where the same weights would be another model."""
    saved = check_state(checkpoint.state, checkpoint.path, needs=("config", "tokenizer_hash"))
    if saved.tokenizer_hash != tokenizer_hash:
        raise TokenizerError(
            f"{checkpoint.path}: trained with the tokenizer {saved.tokenizer_hash}, but tokenizer.path holds"
            f" {tokenizer_hash}; use the tokenizer of the checkpoint (it lies in its folder tokenizer/)"
        )
    heads, heads_now = saved.config.model.num_attention_heads, config.model.num_attention_heads
    if heads != heads_now:  # no shape of a parameter would tell
        raise CheckpointError(
            f"{checkpoint.path}: trained with model.num_attention_heads {heads}, not {heads_now}:"
            " the same weights would be another model; set it back"
        )


def check_continues(checkpoint: CheckpointReader, config: Config, *, tokenizer_hash: str) -> None:
    """Raises TokenizerError or CheckpointError where continuing would silently be another run."""
    check_same_model(checkpoint, config, tokenizer_hash=tokenizer_hash)
    saved = check_state(checkpoint.state, checkpoint.path, needs=("config",))
    seed, seed_now = saved.config.train.seed, config.train.seed
    if seed != seed_now:
        raise CheckpointError(
            f"{checkpoint.path}: trained with train.seed {seed}, not {seed_now}:"
            " the order of the data and the masks would change; set the seed back"
        )

"""What one rank has chosen to start from, told to all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megatron_glm.config.schema import Config
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.parallel.together import agreed
from megatron_glm.training.checkpoints.resuming import Start
from megatron_glm.training.checkpoints.rewind_file import RewindRecord
from megatron_glm.training.checkpoints.starting import choose
from megatron_glm.training.inputs import Inputs


def choose_together(config: Config, inputs: Inputs, ranks: Ranks) -> Start:
    """Rank 0's choice of a checkpoint, verified byte by byte and fit to be continued; every rank calls this.

    Raises:
        CheckpointError, TokenizerError, ConfigError: of `choose`, on rank 0; UserError of the same words on the others.
    """

    def chosen() -> dict[str, Any] | None:
        if ranks.rank != 0:
            return None
        start = choose(
            config,
            tokenizer_hash=inputs.tokenizer.content_hash,
            source_lengths=inputs.samples.lengths,
            source_hashes=inputs.source_hashes,
        )
        rewind = start.rewind and start.rewind.model_dump()
        return {"path": _text(start.path), "notes": start.notes, "weights": _text(start.weights), "rewind": rewind}

    found = ranks.gather(agreed(ranks, chosen))[0]
    rewind = found["rewind"] and RewindRecord(**found["rewind"])
    return Start(_path(found["path"]), tuple(found["notes"]), _path(found["weights"]), rewind)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)

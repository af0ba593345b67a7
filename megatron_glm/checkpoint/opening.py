"""Weights to start a new run with, whoever wrote them."""

from __future__ import annotations

from pathlib import Path

from megatron_glm.checkpoint.locating import locate_checkpoint
from megatron_glm.checkpoint.original import is_original, read_original
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.source import WeightsOnly


def open_weights(path: Path, *, verify: bool) -> CheckpointReader | WeightsOnly:
    """What lies at `path`: a checkpoint, a directory of checkpoints, or a file or directory of the original GLM.

    The original's weights are read into memory, all of them on every rank; a checkpoint's are read part by part.

    Args:
        verify: read and check every byte of a checkpoint first.

    Raises:
        CheckpointError: there is none of these, or it is damaged.
    """
    if is_original(path):
        return WeightsOnly.of_tensors(path, read_original(path))
    return CheckpointReader(locate_checkpoint(path, hashes=verify), verify=verify)

"""What every engine does alike: give and take the values that checkpoints and comparisons are made of."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from megatron_glm.checkpoint.format import Fragment
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.training.canonical_state import CanonicalState
from megatron_glm.training.replica_check import Copy


class StatefulEngine:
    """An engine whose values lie in `_state`."""

    _state: CanonicalState

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Between accumulate and update: the fp32 gradient of each parameter here, or of this rank's shard of it.

        All ranks must iterate.
        """
        return self._state.gradients()

    def fragments(self) -> Iterator[Fragment]:
        """The fp32 weights and moments that this rank saves; over all ranks each element once."""
        return self._state.fragments()

    def copies(self) -> Iterator[Copy]:
        """What this rank holds and others may hold too, for check_replicas."""
        return self._state.copies()

    def load(self, checkpoint: CheckpointReader, *, step: int) -> None:
        """Take weights and moments of a checkpoint saved under any layout.

        Args:
            step: updates made so far, for Adam's bias correction.

        Raises:
            CheckpointError: the checkpoint's parameters are not this model's.
        """
        self._state.load(checkpoint, step=step)

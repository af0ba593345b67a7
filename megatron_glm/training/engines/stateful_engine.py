"""What every engine does alike: give and take the values that checkpoints and comparisons are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Module

from megatron_glm.checkpoint.format import Fragment
from megatron_glm.checkpoint.source import ValueSource
from megatron_glm.training.engines.canonical_state import CanonicalState
from megatron_glm.training.engines.replica_check import Copy

if TYPE_CHECKING:  # DeepSpeed takes seconds to import
    from deepspeed import DeepSpeedEngine


class StatefulEngine:
    """An engine whose values lie in `_state`, around DeepSpeed's `_engine`."""

    _state: CanonicalState
    _engine: DeepSpeedEngine

    @property
    def module(self) -> Module:
        """What DeepSpeed trains here."""
        return self._engine.module

    @property
    def optimizer(self) -> Any:
        """What makes DeepSpeed's updates."""
        return self._engine.optimizer

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Between accumulate and update: the fp32 gradient of each parameter here, or of this rank's shard of it.

        All ranks must iterate.
        """
        return self._state.gradients()

    def fragments(self) -> Iterator[Fragment]:
        """The fp32 weights and moments that this rank saves; over all ranks each element once."""
        return self._state.fragments()

    def working_fragments(self) -> Iterator[Fragment]:
        """The weights that the forward pass reads, as fp32; over all ranks each element once."""
        return self._state.working_fragments()

    def rounded_fragments(self) -> Iterator[Fragment]:
        """What these must be: the fp32 weights, rounded to the precision of the forward pass."""
        return self._state.rounded_fragments()

    def copies(self) -> Iterator[Copy]:
        """What this rank holds and others may hold too, for check_replicas."""
        return self._state.copies()

    def load(self, source: ValueSource, *, step: int) -> None:
        """Take weights and moments of a checkpoint saved under any layout, or of another source.

        Args:
            step: updates made so far, for Adam's bias correction.

        Raises:
            CheckpointError: the source's parameters are not this model's.
        """
        self._state.load(source, step=step)

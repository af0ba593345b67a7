"""Dynamic loss scaling of fp16: DeepSpeed's scaler, with a state that a checkpoint keeps.

Gradients below 6e-8 are zero in fp16, so the loss is multiplied before the backward pass. Where that was too much, a
gradient is infinite: then all ranks skip the update and halve the scale.
"""

from __future__ import annotations

from typing import Any

from deepspeed.runtime.engine import DeepSpeedEngine


class LossScale:
    """The loss scale of an engine; without fp16 it is 1 for ever, and nothing is skipped.

    Args:
        engine: just started.
    """

    def __init__(self, engine: DeepSpeedEngine):
        self._optimizer = engine.optimizer if engine.fp16_enabled() else None
        if self._optimizer:
            # At the floor it would raise at once, and another kind of error on each rank.
            self._optimizer.loss_scaler.raise_error_at_min_scale = False

    @property
    def value(self) -> float:
        return float(self._optimizer.loss_scaler.cur_scale) if self._optimizer else 1.0

    @property
    def overflowed(self) -> bool:
        """Whether the last update was skipped; the same on all ranks."""
        return bool(self._optimizer and self._optimizer.overflow)

    def state(self) -> dict[str, Any] | None:
        """For a checkpoint: the scale, and steps since the last overflow; None without fp16."""
        if self._optimizer is None:
            return None
        scaler = self._optimizer.loss_scaler
        return {"scale": float(scaler.cur_scale), "steps": scaler.cur_iter - scaler.last_overflow_iter - 1}

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on from a state; where there is none, or no use for it, as at the start."""
        if self._optimizer is None or state is None:
            return
        scaler = self._optimizer.loss_scaler
        scaler.cur_scale, scaler.cur_iter, scaler.last_overflow_iter = state["scale"], state["steps"], -1

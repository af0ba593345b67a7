"""The learning rate of each step: the schedule, what overrides it, and a second warm-up after a load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron_glm.config.schema import Config, Overrides
from megatron_glm.training.schedule import learning_rate, rewarmup_factor


class Steering:
    """A function from the step to its learning rate, that is kept in checkpoints.

    Args:
        saved: `state()` of the checkpoint that is continued; None at the beginning of a run.
        first_step: of that checkpoint.

    Attributes:
        overrides: in force now.
    """

    def __init__(self, config: Config, saved: Mapping[str, Any] | None, *, first_step: int):
        self._config = config
        saved = saved or {}
        self.overrides = Overrides.model_validate(saved.get("overrides") or {})
        self._rewarmup = self._rewarmup_after(saved, first_step)

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        schedule = self._config.schedule
        if self.overrides.floor is not None:
            schedule = schedule.model_copy(update={"floor": self.overrides.floor})
        peak = self.overrides.learning_rate or self._config.optimizer.learning_rate
        rate = learning_rate(schedule, peak, self._config.train.steps, step)
        return rate * rewarmup_factor(step - self._rewarmup["after"], self._rewarmup["steps"])

    def adopt(self, overrides: Mapping[str, Any]) -> None:
        """Let these hold from the next step on."""
        self.overrides = Overrides.model_validate(overrides)

    def go_back(self, saved: Mapping[str, Any], *, first_step: int) -> None:
        """The run goes on from an earlier step: a load like any other. What overrides the schedule now still does."""
        self._rewarmup = self._rewarmup_after(saved, first_step)

    def _rewarmup_after(self, saved: Mapping[str, Any], first_step: int) -> dict[str, int]:
        if first_step == 0:
            return {"steps": 0, "after": 0}  # nothing was loaded; the schedule has a warm-up for it
        # A restart in the middle of the second warm-up continues it: only another setting begins a new one.
        steps = self._config.schedule.rewarmup_steps
        before = saved.get("rewarmup") or {"steps": 0, "after": first_step}
        return dict(before) if before["steps"] == steps else {"steps": steps, "after": first_step}

    def state(self) -> dict[str, Any]:
        """What a resume needs to go on with the same rates."""
        return {"overrides": self.overrides.model_dump(mode="json"), "rewarmup": dict(self._rewarmup)}

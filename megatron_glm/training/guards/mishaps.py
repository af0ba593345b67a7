"""What is done about a step whose loss or gradient is not what it should be.

The loss is known on all ranks before the update, the gradient's norm to DeepSpeed before it changes anything; both are
the same on all ranks, which therefore do the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from megatron_glm.config import schema
from megatron_glm.data.skip_list import ranges_of
from megatron_glm.training.guards.divergence import DivergedError, RewindWished
from megatron_glm.training.guards.spikes import Spike, SpikeDetector, StepLoss
from megatron_glm.training.progress import Progress


class Mishaps:
    """Judges each step, before its update and after it; every rank calls each method together with the others.

    Args:
        saved: `state()` of the checkpoint that is continued; None at the beginning of a run.
        progress: that of the trainer, which changes.
        record: takes each metrics record, on every rank.
        documents: writes down which documents these samples were made of, on one rank: where, None if nowhere.
    """

    def __init__(
        self,
        train: schema.Train,
        saved: Mapping[str, Any] | None,
        *,
        progress: Progress,
        record: Callable[[dict], None],
        documents: Callable[[int, np.ndarray], str | None],
    ):
        self._patience = train.nonfinite_patience
        self._settings = train.spikes
        self._progress = progress
        self._record = record
        self._documents = documents
        self._detector = SpikeDetector(train.spikes.window, train.spikes.factor)
        self._spike: Spike | None = None
        self._not_finite = self._spikes = 0  # in a row
        self._rewinds = 0
        self._phase: int | None = None
        if saved:
            self._load(saved)
            self._rewinds = saved["rewinds"]

    def forbids(self, step: StepLoss, *, phase: int) -> bool:
        """Whether a step is not to change the weights; told before its update.

        Args:
            phase: other sources or objectives have other losses.
        """
        if phase != self._phase:
            if self._phase is not None:
                self._detector.forget()
            self._phase = phase
        self._spike = None
        if not math.isfinite(step.loss):
            return True
        if self._settings.policy != "off":
            self._spike = self._detector.find(step)
        return self._spike is not None and self._settings.policy in ("skip", "rewind")

    def settle(self, step: StepLoss, norm: float | None, samples: np.ndarray) -> None:
        """Record what was wrong with a step that is now behind the run, if anything.

        Args:
            norm: of its gradient; None where no update was wanted, or one overflowed in fp16.
            samples: of the step, int64 [batch].

        Raises:
            DivergedError: too many in a row.
            RewindWished: the run is to go back.
        """
        if not (math.isfinite(step.loss) and (norm is None or math.isfinite(norm))):
            self._tell_not_finite(step, norm, samples)
            return
        if self._spike is None or self._settings.policy == "warn":
            if self._settings.policy != "off":
                self._detector.add(step)
            self._not_finite = 0 if norm is not None else self._not_finite
        if self._spike is None:
            self._spikes = 0
        else:
            self._tell_spike(step, self._spike, samples)

    @property
    def rewinds(self) -> int:
        """Of the run so far."""
        return self._rewinds

    def state(self) -> dict[str, Any]:
        """What a resume needs to judge alike: anything JSON can hold."""
        return {
            "losses": self._detector.state(),
            "phase": self._phase,
            "not_finite": self._not_finite,
            "spikes": self._spikes,
            "rewinds": self._rewinds,
        }

    def go_back(self, saved: Mapping[str, Any]) -> None:
        """The run goes on from a state; no rewind takes back how many there have been."""
        self._load(saved)
        self._rewinds += 1

    def _load(self, saved: Mapping[str, Any]) -> None:
        self._detector.load(saved["losses"])
        self._phase = saved["phase"]
        self._not_finite, self._spikes = saved["not_finite"], saved["spikes"]

    def _tell_not_finite(self, step: StepLoss, norm: float | None, samples: np.ndarray) -> None:
        self._not_finite += 1
        what = {"loss": step.loss, "gradient_norm": norm, "in_a_row": self._not_finite}
        self._tell("not_finite", what, samples)
        if self._not_finite >= self._patience:
            raise DivergedError(
                f"step {self._progress.step}: loss {step.loss}, gradient norm {norm}, on samples {samples[0]} to"
                f" {samples[-1]}, the last of {self._not_finite} such steps in a row (train.nonfinite_patience); no"
                " update was made of them; stopped, and nothing was saved after it: resume with a lower"
                " optimizer.learning_rate, or leave samples out with data.skip_samples"
            )

    def _tell_spike(self, step: StepLoss, spike: Spike, samples: np.ndarray) -> None:
        self._spikes += 1
        policy, what = self._settings.policy, {"loss": step.loss, "expected": spike.expected}
        self._tell("spike", {**what, "deviations": spike.deviations, "policy": policy}, samples)
        if policy != "warn" and self._spikes >= self._settings.patience:
            raise DivergedError(
                f"step {self._progress.step}: loss {step.loss:.3f} where {spike.expected:.3f} was expected, on samples"
                f" {samples[0]} to {samples[-1]}, the last of {self._spikes} such steps in a row"
                " (train.spikes.patience); stopped, and nothing was saved after it: resume with a lower"
                " optimizer.learning_rate, or with train.spikes.policy=warn"
            )
        if policy == "rewind":
            if self._rewinds >= self._settings.rewinds:
                raise DivergedError(
                    f"step {self._progress.step}: loss {step.loss:.3f} where {spike.expected:.3f} was expected, after"
                    f" {self._rewinds} rewinds (train.spikes.rewinds); stopped, and nothing was saved after it:"
                    " resume with a lower optimizer.learning_rate, or with train.spikes.policy=warn"
                )
            raise RewindWished(end=int(samples[-1]) + 1, samples=self._settings.rewind_steps * len(samples))

    def _tell(self, kind: str, what: Mapping[str, Any], samples: np.ndarray) -> None:
        documents = self._documents(self._progress.step, samples)
        ranges = ranges_of(samples)
        self._record({"kind": kind, **self._progress.position(), **what, "ranges": ranges, "documents": documents})

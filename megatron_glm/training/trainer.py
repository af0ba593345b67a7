"""The loop: step, log, validate, save.

A step in five parts: take this replica's micro-batches, sum the target counts over the replicas,
weigh the targets, accumulate the gradients, update. Everything that a resume needs is in `Progress`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from megatron_glm.config.schema import Config
from megatron_glm.data.batch import Batch
from megatron_glm.data.loader import Step, StepLoader
from megatron_glm.errors import UserError
from megatron_glm.objective.sample import Objective
from megatron_glm.training.exact_loss import Counts, LossAverage, mean_by_objective, sums_over_replicas
from megatron_glm.training.objective_weights import combine, objective_weights
from megatron_glm.training.schedule import learning_rate
from megatron_glm.training.zero_engine import ZeroEngine


class DivergedError(UserError):
    """The loss or the gradient is not a number."""


@dataclass
class Progress:
    """Where a run stands: all of its data state."""

    step: int = 0
    samples: int = 0
    tokens: int = 0


@dataclass
class _Interval:
    """What has happened since the last record."""

    average: LossAverage = field(default_factory=LossAverage)
    tokens: int = 0
    yielded: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    norm: float = 0.0
    rate: float = 0.0


class Trainer:
    """Trains from `progress` to the last step of the configuration.

    Args:
        probabilities: of each objective in the mixture.
        loader: this replica's steps, from `progress.samples` on.
        validation_batches: this replica's share of the held-out windows under one objective.
        objectives: those that are validated.
        record: takes each metrics record, on every rank.
        save: takes the progress where a checkpoint is due.
    """

    def __init__(
        self,
        config: Config,
        engine: ZeroEngine,
        loader: StepLoader,
        *,
        probabilities: Sequence[float],
        progress: Progress,
        validation_batches: Callable[[Objective], Iterable[Batch]],
        objectives: tuple[Objective, ...],
        record: Callable[[dict], None],
        save: Callable[[Progress], None],
    ):
        self._config = config
        self._engine = engine
        self._loader = loader
        self.progress = progress
        self._validation_batches = validation_batches
        self._objectives = objectives
        self._record = record
        self._save = save
        self._probabilities = probabilities

    def run(self) -> None:
        """All remaining steps; a validation and a checkpoint at the end.

        Raises:
            DivergedError: a loss or gradient norm that is not finite; nothing is saved after it.
        """
        train = self._config.train
        interval = _Interval()
        while self.progress.step < train.steps:
            self._timed_step(interval)
            if self._due(train.log_interval):
                self._record(self._training_record(interval))
                interval = _Interval()
            if self._due(train.eval_interval):
                self._record(self.validate())
            if self._due(self._config.checkpoint.save_interval or train.steps):
                self._save(self.progress)

    def _due(self, interval: int) -> bool:
        return self.progress.step % interval == 0 or self.progress.step == self._config.train.steps

    def _timed_step(self, interval: _Interval) -> None:
        started, waited = time.perf_counter(), self._loader.wait_seconds
        self._step(next(self._loader), interval)
        interval.seconds += time.perf_counter() - started
        interval.wait_seconds += self._loader.wait_seconds - waited

    def _step(self, step: Step, interval: _Interval) -> None:
        progress, train = self.progress, self._config.train
        counts = Counts.of(step.micro_batches).over_replicas(self._engine.device)
        weights = objective_weights(counts.targets, self._probabilities, train.loss)
        sums = sums_over_replicas(self._engine.accumulate(step.micro_batches, weights))
        peak = self._config.optimizer.learning_rate
        rate = learning_rate(self._config.schedule, peak, train.steps, progress.step + 1)
        norm = self._engine.update(rate)
        loss = combine(sums, weights)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            last_sample = step.first_sample + train.global_batch_size - 1
            raise DivergedError(
                f"step {progress.step + 1}: loss {loss}, gradient norm {norm}, on samples {step.first_sample}"
                f" to {last_sample}; stopped, and nothing was saved after it"
            )
        progress.step += 1
        progress.samples += train.global_batch_size
        progress.tokens += counts.tokens
        interval.average.add(loss, sums, counts.targets)
        interval.tokens += counts.tokens
        interval.yielded += counts.yielded
        interval.norm, interval.rate = norm, rate

    def _training_record(self, interval: _Interval) -> dict:
        return {
            "kind": "train",
            **self._position(),
            "loss": interval.average.mean_loss,
            "losses": interval.average.by_objective(),
            "learning_rate": interval.rate,
            "gradient_norm": interval.norm,
            "tokens_per_second": interval.tokens / interval.seconds,
            "targets_per_second": sum(interval.average.targets) / interval.seconds,
            "seconds_per_step": interval.seconds / interval.average.steps,
            "yielded": interval.yielded,
            "data_wait": interval.wait_seconds / interval.seconds,
        }

    def validate(self) -> dict:
        """The validation record: every objective over the same held-out windows, exact over all replicas."""
        started = time.perf_counter()
        sums, targets = [0.0] * len(Objective), [0] * len(Objective)
        for objective in self._objectives:
            local_sums, local_counts = self._engine.evaluate(self._validation_batches(objective))
            sums[objective] = sums_over_replicas(local_sums)[objective]
            targets[objective] = local_counts.over_replicas(self._engine.device).targets[objective]
        weights = objective_weights(targets, self._probabilities, self._config.train.loss)
        return {
            "kind": "validation",
            **self._position(),
            "loss": combine(sums, weights),
            "losses": mean_by_objective(sums, targets),
            "targets": {objective.name.lower(): targets[objective] for objective in self._objectives},
            "seconds": time.perf_counter() - started,
        }

    def _position(self) -> dict:
        progress = self.progress
        return {"step": progress.step, "samples": progress.samples, "tokens": progress.tokens}

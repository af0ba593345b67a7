"""The loop: step, log, validate, save.

A step in five parts: take this replica's micro-batches, sum the target counts over the replicas,
weigh the targets, accumulate the gradients, update. Everything that a resume needs is in `Progress`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist

from megatron_glm.config.batching import BatchSizes
from megatron_glm.config.schema import Config
from megatron_glm.data.batch import Batch
from megatron_glm.data.loader import Loader, Step
from megatron_glm.errors import UserError
from megatron_glm.objective.sample import Objective
from megatron_glm.training.engines import Engine
from megatron_glm.training.exact_loss import Counts, LossAverage, mean_by_objective, sums_over_replicas
from megatron_glm.training.objective_weights import combine, objective_weights
from megatron_glm.training.schedule import embedding_gradient_factor, learning_rate


class DivergedError(UserError):
    """The loss or the gradient is not a number."""


@dataclass
class Progress:
    """Where a run stands: all of its data state.

    Attributes:
        skipped: steps whose update an fp16 overflow cost.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    skipped: int = 0

    @property
    def updates(self) -> int:
        """Updates of the weights so far."""
        return self.step - self.skipped


@dataclass
class _Interval:
    """What has happened since the last record."""

    average: LossAverage = field(default_factory=LossAverage)
    tokens: int = 0
    yielded: int = 0
    skipped: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    norm: float = math.nan
    rate: float = 0.0
    batch: int = 0


class Trainer:
    """Trains from `progress` to the last step of the configuration.

    Args:
        replicas: one rank of each replica.
        probabilities: of each objective in the mixture of some samples.
        phase: number of the one that holds at a sample.
        loader: this replica's steps, from `progress.samples` on.
        validation_batches: this replica's share of the held-out windows under one objective.
        objectives: those that are validated.
        record: takes each metrics record, on every rank.
        save: takes the progress where a checkpoint is due.
        check: takes the step where replicas are to be compared, before each save too; raises where they differ.
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        loader: Loader,
        *,
        replicas: dist.ProcessGroup,
        probabilities: Callable[[range], Sequence[float]],
        phase: Callable[[int], int],
        progress: Progress,
        validation_batches: Callable[[Objective], Iterable[Batch]],
        objectives: tuple[Objective, ...],
        record: Callable[[dict], None],
        save: Callable[[Progress], None],
        check: Callable[[int], None],
    ):
        self._config = config
        self._engine = engine
        self._replicas = replicas
        self._loader = loader
        self.progress = progress
        self._validation_batches = validation_batches
        self._objectives = objectives
        self._record = record
        self._save = save
        self._check = check
        self._probabilities = probabilities
        self._phase = phase
        self._batch_sizes = BatchSizes.of(config.train)
        self._overflows_at_floor = 0  # in a row

    def run(self) -> None:
        """All remaining steps; a validation and a checkpoint at the end.

        Raises:
            DivergedError: a loss or gradient norm that is not finite, or fp16 overflows at the lowest loss scale;
                nothing is saved after it.
            ReplicaError: ranks that hold the same values no longer do.
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
            saves = self._due(self._config.checkpoint.save_interval or train.steps)
            if saves or self._due(train.replica_check_interval):
                self._check(self.progress.step)
            if saves:
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
        counts = Counts.of(step.micro_batches).over_replicas(self._engine.device, self._replicas)
        batch = self._batch_sizes.at(step.first_sample)
        samples = range(step.first_sample, step.first_sample + batch)
        weights = objective_weights(counts.targets, self._probabilities(samples), train.loss)
        factor = embedding_gradient_factor(train.embedding_gradient, step.first_sample)
        local_sums = self._engine.accumulate(step.micro_batches, weights, embedding_gradient=factor)
        sums = sums_over_replicas(local_sums, self._replicas)
        peak = self._config.optimizer.learning_rate
        rate = learning_rate(self._config.schedule, peak, train.steps, progress.step + 1)
        scale = self._engine.loss_scale.value
        norm = self._engine.update(rate)
        loss = combine(sums, weights)
        if not (math.isfinite(loss) and (norm is None or math.isfinite(norm))):
            raise DivergedError(
                f"step {progress.step + 1}: loss {loss}, gradient norm {norm}, on samples {samples[0]}"
                f" to {samples[-1]}; stopped, and nothing was saved after it"
            )
        progress.step += 1
        progress.samples += batch
        progress.tokens += counts.tokens
        if norm is None:
            self._skip(scale, interval)
        else:
            self._overflows_at_floor, interval.norm = 0, norm
        interval.average.add(loss, sums, counts.targets)
        interval.tokens += counts.tokens
        interval.yielded += counts.yielded
        interval.rate, interval.batch = rate, batch

    def _skip(self, scale: float, interval: _Interval) -> None:
        """Count and record a step whose update was skipped; raises DivergedError when there is no hope of another."""
        settings = self._config.train.loss_scale
        self.progress.skipped += 1
        interval.skipped += 1
        self._record(
            {
                "kind": "skip",
                **self._position(),
                "loss_scale": scale,
                "next_loss_scale": self._engine.loss_scale.value,
            }
        )
        self._overflows_at_floor = self._overflows_at_floor + 1 if scale <= settings.floor else 0
        if self._overflows_at_floor >= settings.patience:
            raise DivergedError(
                f"step {self.progress.step}: fp16 gradients overflow at loss scale {scale:.0f}, train.loss_scale.floor,"
                f" for {self._overflows_at_floor} steps in a row; stopped, and nothing was saved after it: resume from"
                " an earlier checkpoint with train.precision=bf16 or a lower optimizer.learning_rate"
            )

    def _training_record(self, interval: _Interval) -> dict:
        return {
            "kind": "train",
            **self._position(),
            "phase": self._phase(self._last_sample()),
            "loss": interval.average.mean_loss,
            "losses": interval.average.by_objective(),
            "learning_rate": interval.rate,
            "gradient_norm": interval.norm,
            "global_batch_size": interval.batch,
            "loss_scale": self._engine.loss_scale.value,
            "skipped": interval.skipped,
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
            sums[objective] = sums_over_replicas(local_sums, self._replicas)[objective]
            targets[objective] = local_counts.over_replicas(self._engine.device, self._replicas).targets[objective]
        last = self._last_sample()
        weights = objective_weights(targets, self._probabilities(range(last, last + 1)), self._config.train.loss)
        return {
            "kind": "validation",
            **self._position(),
            "loss": combine(sums, weights),
            "losses": mean_by_objective(sums, targets),
            "targets": {objective.name.lower(): targets[objective] for objective in self._objectives},
            "seconds": time.perf_counter() - started,
        }

    def _last_sample(self) -> int:
        return max(0, self.progress.samples - 1)

    def _position(self) -> dict:
        progress = self.progress
        return {"step": progress.step, "samples": progress.samples, "tokens": progress.tokens}

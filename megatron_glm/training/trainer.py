"""The loop: step, log, validate, save.

A step in five parts: take this replica's micro-batches, sum the target counts over the replicas,
weigh the targets, accumulate the gradients, update.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch.distributed as dist

from megatron_glm.config.batching import BatchSizes
from megatron_glm.config.schema import Config
from megatron_glm.data.batch import Batch
from megatron_glm.data.loader import Loader, Step
from megatron_glm.objective.sample import Objective
from megatron_glm.training.checkpoints.saving import Saver
from megatron_glm.training.control.guard import Guard
from megatron_glm.training.control.stopping import StopWished
from megatron_glm.training.engines.engine import Engine
from megatron_glm.training.engines.exact_loss import Counts, LossAverage, mean_by_objective, sums_over_replicas
from megatron_glm.training.guards.divergence import DivergedError, RewindWished
from megatron_glm.training.guards.mishaps import Mishaps
from megatron_glm.training.guards.spikes import StepLoss
from megatron_glm.training.objective_weights import combine, objective_weights
from megatron_glm.training.progress import Progress
from megatron_glm.training.schedule import embedding_gradient_factor


@dataclass
class _Interval:
    """What has happened since the last record."""

    steps: int = 0
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
        saver: takes the progress where a checkpoint is due.
        check: takes the step where replicas are to be compared, before each save and before the data are blamed for a
            loss too; raises where they differ.
        guard: watches over it.
        mishaps: judges each step.
        go_back: takes the progress back to the last checkpoint: the loader from there on; None where there is none.
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
        saver: Saver,
        check: Callable[[int], None],
        guard: Guard,
        mishaps: Mishaps,
        go_back: Callable[[RewindWished], Loader | None],
    ):
        self._config = config
        self._engine = engine
        self._replicas = replicas
        self._loader = loader
        self.progress = progress
        self._validation_batches = validation_batches
        self._objectives = objectives
        self._record = record
        self._saver = saver
        self._check = check
        self._guard = guard
        self._mishaps = mishaps
        self._go_back = go_back
        self._saved_step = progress.step
        self._probabilities = probabilities
        self._phase = phase
        self._batch_sizes = BatchSizes.of(config.train)
        self._overflows_at_floor = 0  # in a row

    def run(self) -> str:
        """All remaining steps, a validation and a checkpoint at the end: why they end before the last; '' if not.

        Raises:
            DivergedError: too many steps in a row without a finite loss and gradient norm, too many spikes, or fp16
                overflows at the lowest loss scale; nothing is saved after it.
            ReplicaError: ranks that hold the same values no longer do.
        """
        train = self._config.train
        interval, reason = _Interval(), ""
        while self.progress.step < train.steps and not reason:
            try:
                if not self._timed_step(interval):
                    interval = _Interval()
                    continue
                if self._due(train.log_interval):
                    interval = self._end_interval(interval)
                if self._due(train.eval_interval):
                    self._record(self.validate())
            except StopWished as wish:
                reason = str(wish)
                interval = self._stop(interval, reason)
            saves = bool(reason) or self._due(self._config.checkpoint.save_interval or train.steps)
            if saves or self._due(train.replica_check_interval):
                self._check(self.progress.step)
            if saves:
                self._save_once()
            self._saver.step_end()
            self._guard.watchdog.settle()
        with self._guard.patient("the last save"):
            self._saver.finish()
        return reason

    def _rewind(self, wish: RewindWished) -> bool:
        """Whether there was a checkpoint to go back to."""
        with self._guard.patient("going back to the last checkpoint"):
            self._saver.finish()
            loader = self._go_back(wish)
        if loader is None:
            return False
        self._loader = loader
        self._saved_step, self._overflows_at_floor = self.progress.step, 0
        return True

    def _end_interval(self, interval: _Interval) -> _Interval:
        self._guard.report_stragglers(interval.steps)
        self._record(self._training_record(interval))
        return _Interval()

    def _stop(self, interval: _Interval, reason: str) -> _Interval:
        if interval.steps:
            interval = self._end_interval(interval)
        self._record({"kind": "stop", **self.progress.position(), "reason": reason})
        return interval

    def _save_once(self) -> None:
        if self._saved_step != self.progress.step:
            with self._guard.patient("the save"):
                self._saver.save(self.progress)
            self._saved_step = self.progress.step

    def _due(self, interval: int) -> bool:
        return self.progress.step % interval == 0 or self.progress.step == self._config.train.steps

    def _timed_step(self, interval: _Interval) -> bool:
        """Whether a step is behind the run now; False: it has gone back."""
        started, waited = time.perf_counter(), self._loader.wait_seconds
        try:
            self._step(next(self._loader), interval)
        except (DivergedError, RewindWished) as end:
            # One rank's flipped bit spoils the loss too: no samples are to blame then, and the last checkpoint is well.
            self._check(self.progress.step)
            if isinstance(end, DivergedError):
                raise
            if self._rewind(end):
                return False
        interval.seconds += time.perf_counter() - started
        interval.wait_seconds += self._loader.wait_seconds - waited
        return True

    def _step(self, step: Step, interval: _Interval) -> None:
        progress, train, watchdog = self.progress, self._config.train, self._guard.watchdog
        watchdog.doing = f"step {progress.step + 1}, waiting for other ranks"
        counts = self._guard.agreement.start_step(Counts.of(step.micro_batches))
        watchdog.doing = f"step {progress.step + 1}, forward and backward"
        samples = progress.skips.take(step.first_sample, self._batch_sizes.at(step.first_sample))
        weights = objective_weights(counts.targets, self._probabilities(samples), train.loss)
        factor = embedding_gradient_factor(train.embedding_gradient, step.first_sample)
        local_sums = self._engine.accumulate(step.micro_batches, weights, embedding_gradient=factor)
        watchdog.doing = f"step {progress.step + 1}, update"
        # Before the update: a step that is not what it should be must not change anything.
        sums = self._guard.agreement.step_sums(local_sums)
        loss = StepLoss(combine(sums, weights), sums, counts.targets, weights)
        rate, scale = self._guard.steering.rate(progress.step + 1), self._engine.loss_scale.value
        norm = None
        # Of the last sample: one step may have samples of two phases, or begin behind some that are left out.
        if forbidden := self._mishaps.forbids(loss, phase=self._phase(int(samples[-1]))):
            self._engine.drop()
        else:
            norm = self._engine.update(rate)
        watchdog.doing = f"step {progress.step + 2}, data"
        self._count(interval, loss, counts, samples)
        interval.rate = rate
        if forbidden or (norm is not None and not math.isfinite(norm)):
            self._leave_out(interval)
        elif norm is None:
            self._skip(scale, interval)
        else:
            self._overflows_at_floor, interval.norm = 0, norm
        self._mishaps.settle(loss, norm, samples)

    def _count(self, interval: _Interval, loss: StepLoss, counts: Counts, samples: np.ndarray) -> None:
        """The step is behind the run, with or without an update."""
        self.progress.step += 1
        self.progress.samples = int(samples[-1]) + 1
        self.progress.tokens += counts.tokens
        if math.isfinite(loss.loss):  # else the records tell of it, and the averages are of the others
            interval.average.add(loss.loss, loss.sums, counts.targets)
        interval.steps += 1
        interval.tokens += counts.tokens
        interval.yielded += counts.yielded
        interval.batch = len(samples)

    def _leave_out(self, interval: _Interval) -> None:
        self.progress.skipped += 1
        interval.skipped += 1

    def _skip(self, scale: float, interval: _Interval) -> None:
        """Record a step whose update an fp16 overflow cost; raises DivergedError when there is no hope of another."""
        settings = self._config.train.loss_scale
        self._leave_out(interval)
        self._record(
            {
                "kind": "skip",
                **self.progress.position(),
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
            **self.progress.position(),
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
            "seconds_per_step": interval.seconds / interval.steps,
            "yielded": interval.yielded,
            "data_wait": interval.wait_seconds / interval.seconds,
        }

    def validate(self) -> dict:
        """The validation record: every objective over the same held-out windows, exact over all replicas."""
        started = time.perf_counter()
        sums, targets = [0.0] * len(Objective), [0] * len(Objective)
        for objective in self._objectives:
            self._guard.watchdog.doing = f"the validation at step {self.progress.step}"
            batches = self._guard.agreement.between(self._validation_batches(objective))
            local_sums, local_counts = self._engine.evaluate(batches)
            sums[objective] = sums_over_replicas(local_sums, self._replicas)[objective]
            targets[objective] = local_counts.over_replicas(self._engine.device, self._replicas).targets[objective]
        last = self._last_sample()
        weights = objective_weights(targets, self._probabilities(range(last, last + 1)), self._config.train.loss)
        return {
            "kind": "validation",
            **self.progress.position(),
            "loss": combine(sums, weights),
            "losses": mean_by_objective(sums, targets),
            "targets": {objective.name.lower(): targets[objective] for objective in self._objectives},
            "seconds": time.perf_counter() - started,
        }

    def _last_sample(self) -> int:
        return max(0, self.progress.samples - 1)

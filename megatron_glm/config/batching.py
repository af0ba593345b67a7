"""How large the global batch is, and how it is split: the arithmetic, and the errors that show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from megatron_glm.config.schema import Train
from megatron_glm.errors import ConfigError


def accumulation_steps(
    global_batch_size: int, micro_batch_size: int, data_parallel: int, *, field: str = "train.global_batch_size"
) -> int:
    """Micro-batches of one replica in a step.

    Args:
        field: the setting that has this number of samples.

    Raises:
        ConfigError: the global batch is not micro_batch_size × accumulation × data parallel.
    """
    step = micro_batch_size * data_parallel
    if global_batch_size % step == 0:
        return global_batch_size // step
    below = global_batch_size // step * step
    nearest = f"nearest are {below} and {below + step}" if below else f"the smallest is {step}"
    raise ConfigError(
        f"{field}: {global_batch_size} is not micro_batch_size × accumulation × data parallel"
        f" = {micro_batch_size} × a × {data_parallel}; {nearest}"
    )


@dataclass(frozen=True)
class BatchSizes:
    """Samples of a step as a pure function of the samples consumed before it.

    The size begins at `start`, grows by `increment` after equal shares of `ramp_samples`, and is `final` from then
    on. So a resume at any sample, under any layout, goes on with the size of a run that never stopped.

    Source: Megatron-LM's batch size ramp-up.
    """

    final: int
    start: int
    increment: int
    ramp_samples: int

    @classmethod
    def constant(cls, size: int) -> Self:
        """The same for all steps."""
        return cls(size, size, 1, 1)

    @classmethod
    def of(cls, train: Train) -> Self:
        """The sizes of a run; constant where there is no ramp."""
        ramp = train.batch_ramp
        return cls(train.global_batch_size, ramp.start or train.global_batch_size, ramp.increment, ramp.samples)

    def at(self, consumed_samples: int) -> int:
        """Samples of the step that begins after so many."""
        increments = (self.final - self.start) // self.increment
        done = min(increments, consumed_samples * increments // self.ramp_samples)
        return self.start + done * self.increment

    def accumulation(self, micro_batch_size: int, data_parallel: int) -> int:
        """Micro-batches of one replica in a step of the final size.

        Raises:
            ConfigError: a size that the run comes to is not micro_batch_size × accumulation × data parallel.
        """
        if self.start != self.final:
            accumulation_steps(self.start, micro_batch_size, data_parallel, field="train.batch_ramp.start")
            accumulation_steps(self.increment, micro_batch_size, data_parallel, field="train.batch_ramp.increment")
        return accumulation_steps(self.final, micro_batch_size, data_parallel)

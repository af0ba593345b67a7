"""The order of a pipeline's work in a step: one forward, one backward, in turn."""

from __future__ import annotations

from collections.abc import Iterator

from deepspeed.runtime.pipe.schedule import OptimizerStep, PipeInstruction, TrainSchedule


class GradientSchedule(TrainSchedule):
    """DeepSpeed's 1F1B up to the reduced gradients; the optimizer's step, which it ends with, is left to the caller."""

    def steps(self) -> Iterator[list[PipeInstruction]]:
        for instructions in super().steps():
            yield [one for one in instructions if not isinstance(one, OptimizerStep)]

"""Where a run's records go: the metrics file, the terminal, the picture. Only the first process has them."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from megatron_glm.command import tell
from megatron_glm.config.schema import Config
from megatron_glm.training.reports.metrics import MetricsLog
from megatron_glm.training.reports.plots import plot_metrics
from megatron_glm.training.reports.reporting import EVENT_LINES, step_line


class Console:
    """Takes the records of all ranks and keeps those of the one that leads.

    Args:
        start_step: step of the checkpoint that is continued; later records of an earlier run are dropped.

    Attributes:
        last_validation: the newest validation record, if any.
    """

    def __init__(self, config: Config, *, leads: bool, start_step: int):
        output = Path(config.train.output)
        self._steps = config.train.steps
        self._metrics = MetricsLog(output / "metrics.jsonl", start_step=start_step) if leads else None
        self._plot = output / "loss.png"
        self.last_validation: dict | None = None

    def say(self, text: str) -> None:
        if self._metrics:
            tell(text)

    def record(self, record: dict) -> None:
        if record["kind"] == "validation":
            self.last_validation = record
        if self._metrics is None:
            return
        self._metrics.write(record)
        if record["kind"] == "train":
            eta = (self._steps - record["step"]) * record["seconds_per_step"]
            self.say(step_line(record, steps=self._steps, eta_seconds=eta))
        elif record["kind"] in EVENT_LINES:
            self.say(EVENT_LINES[record["kind"]](record))

    def forget(self, step: int, validation: dict | None) -> None:
        """Drop what came after a step to which the run goes back.

        Args:
            validation: the newest one up to that step.
        """
        self.last_validation = validation
        if self._metrics:
            self._metrics.rewind(step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._metrics is None:
            return
        try:
            self._metrics.close()
            plot_metrics(self._metrics.path, self._plot)
        except OSError as failure:  # must not hide the error that the run ends with
            self.say(f"{self._plot}: not drawn ({failure.strerror})")

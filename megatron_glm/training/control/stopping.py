"""Why a run stops before its last step, and how it says so to what has started it."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from megatron_glm.config.schema import Config
from megatron_glm.errors import ConfigError
from megatron_glm.files import atomic_file
from megatron_glm.json_reading import json_object
from megatron_glm.training.control.signals import StopSignals
from megatron_glm.training.launcher_watch import LauncherWatch

STOP_FILE = "stop"
END_FILE = "end.json"
LAUNCHER_ENDED = "its launcher has ended"
OUTPUT_VANISHED = "its output has vanished"


class StopWished(Exception):  # noqa: N818 - nothing is wrong
    """All ranks have agreed to stop between two steps; the text says why."""


class Wishes:
    """Why this rank would have the run stop, if it would.

    Args:
        leads: of rank 0: it alone looks at the clock and for the stop file, so that no machine's clock and no
            file system's delay makes ranks differ.
        first_step: the progress this start begins with.
        started: `time.monotonic()` when this start began.
    """

    def __init__(
        self,
        config: Config,
        *,
        rank: int,
        signals: StopSignals,
        launcher: LauncherWatch,
        first_step: int,
        started: float,
    ):
        self._train = config.train
        self._rank = rank
        self._signals = signals
        self._launcher = launcher
        self._first_step = first_step
        self._started = started
        self._output = Path(config.train.output)

    def reason(self, step: int) -> str | None:
        """Why not go on after this step; None: go on."""
        # Before the signal: the launcher's end sends one too, where a terminal was closed.
        if self._launcher.has_ended():
            return LAUNCHER_ENDED
        if self._signals.received:
            return f"{self._signals.received} to rank {self._rank} on {socket.gethostname()}"
        if self._rank != 0:
            return None
        minutes = self._train.exit_after_minutes
        if minutes is not None and time.monotonic() - self._started >= 60 * minutes:
            return f"train.exit_after_minutes={minutes:g}"
        steps = self._train.exit_after_steps
        if steps is not None and step - self._first_step >= steps:
            return f"train.exit_after_steps={steps}"
        if not self._output.is_dir():
            return OUTPUT_VANISHED
        stop_file = self._output / STOP_FILE
        return f"the file {stop_file}" if stop_file.exists() else None


@dataclass(frozen=True)
class End:
    """A start that ended well.

    Attributes:
        finished: whether the run has made its last step.
        reason: why it stopped; empty if it is finished.
    """

    step: int
    finished: bool
    reason: str


def forget_end(output: Path) -> None:
    """Remove what an earlier start has said of its end."""
    (output / END_FILE).unlink(missing_ok=True)


def write_end(output: Path, end: End, *, leads: bool) -> None:
    """Say that a start ended well, and that nobody need start it again; the stop file has been obeyed.

    Every rank calls it, the one that leads writes.

    A start whose launcher has ended says nothing: nobody wished that.

    Raises:
        ConfigError: the output had vanished, on all ranks.
    """
    if end.reason == OUTPUT_VANISHED:
        raise ConfigError(
            f"train.output: '{output}' was removed under the run; its state at step {end.step} is saved in a new one,"
            " earlier checkpoints and metrics are gone"
        )
    if end.reason == LAUNCHER_ENDED or not leads:
        return
    with atomic_file(output / END_FILE) as stream:
        stream.write(json.dumps(asdict(end)).encode())
    (output / STOP_FILE).unlink(missing_ok=True)


def read_end(output: Path) -> End | None:
    """What the last start has said of its end; None if it said nothing, or not all."""
    try:
        end = End(**json_object((output / END_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    types = (type(end.step), type(end.finished), type(end.reason))
    return end if types == (int, bool, str) else None

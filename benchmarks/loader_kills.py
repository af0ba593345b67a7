"""Kills a loader's workers at random moments and compares every batch with those of an undisturbed loader.

A part of benchmarks/kill_sweep.py.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

from torch import Tensor

from benchmarks.process_tree import is_alive
from benchmarks.synthetic_run import with_data, write_run
from megatron_glm.config.schema import Config
from megatron_glm.data.batch import Batch, collate
from megatron_glm.data.dataset import SampleDataset
from megatron_glm.data.loader import Loader, Step, StepLoader
from megatron_glm.data.process_loader import ProcessLoader
from megatron_glm.tokenizer.loading import load_tokenizer

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Report:
    """What became of a loader whose workers were killed.

    Attributes:
        equal: every step has the content of the undisturbed one.
        kills: of each kill: before which step, how many seconds after it was asked for, the worker's age in
            seconds and its state (R: running, S: waiting).
        replaced: the lines that named a worker which was replaced.
    """

    seed: int
    steps: int
    equal: bool = True
    kills: list[dict[str, Any]] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)


def loader_kills(directory: Path, *, kills: int, seed: int, workers: int = 2, steps: int | None = None) -> Report:
    """Run a loader over `steps` (default: two for each kill) in an empty directory, with this many random kills.

    At most one worker is killed for each step, since a loader gives up after four deaths without a step.
    """
    drawn = random.Random(seed)
    steps = steps or 2 * kills
    config = write_run(directory, tokens=300_000, mean=160, global_batch_size=64, micro_batch_size=8)
    killed_at = set(drawn.sample(range(steps), kills))
    report = Report(seed, steps)
    with (
        _undisturbed(config) as expected,
        _with_workers(with_data(config, workers=workers, prefetch=2 * workers), report) as loader,
    ):
        for step in range(steps):
            timer = _kill_soon(loader, drawn, step, report) if step in killed_at else None
            report.equal &= digest(next(loader)) == digest(next(expected))
            if timer:
                timer.join()
    return report


def digest(step: Step) -> str:
    """SHA-256 over everything that a step holds."""
    whole = hashlib.sha256(repr((step.first_sample, step.target_counts)).encode())
    for batch in step.micro_batches:
        for name, value in _parts(batch):
            content = value.numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode()
            kind = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
            whole.update(f"{name} {kind} {len(content)}\n".encode() + content)
    return whole.hexdigest()


def _parts(batch: Batch) -> list[tuple[str, Any]]:
    groups = ("visibility", "row_keys")
    inner = [(f"{group}.{name}", value) for group in groups for name, value in vars(getattr(batch, group)).items()]
    return [(name, value) for name, value in vars(batch).items() if name not in groups] + inner


def _undisturbed(config: Config) -> Loader:
    tokenizer = load_tokenizer(config.tokenizer.path)
    return StepLoader(
        SampleDataset.open(config, tokenizer),
        partial(collate, pad_id=tokenizer.special.eos),
        consumed_samples=0,
        global_batch_size=config.train.global_batch_size,
        micro_batch_size=config.train.micro_batch_size,
        dp_rank=0,
        dp_size=1,
        prefetch=0,
    )


def _with_workers(config: Config, report: Report) -> ProcessLoader:
    options = {"pad_id": load_tokenizer(config.tokenizer.path).special.eos}
    return ProcessLoader(config, options, consumed_samples=0, dp_rank=0, dp_size=1, tell=report.replaced.append)


def _kill_soon(loader: ProcessLoader, drawn: random.Random, step: int, report: Report) -> Timer:
    """Kill a worker now or within half a second: while it starts, opens the data, makes a step or waits."""
    delay, number = drawn.choice([0.0, drawn.uniform(0, 0.02), drawn.uniform(0, 0.5)]), drawn.random()

    def kill() -> None:
        while not (living := [pid for pid in loader.processes if is_alive(pid)]):
            time.sleep(0.001)  # the one there is was killed before and is not replaced yet
        pid = living[int(number * len(living))]
        state, age = _state(pid)
        os.kill(pid, signal.SIGKILL)
        report.kills.append({"step": step, "after": round(delay, 4), "age": age, "state": state})

    timer = Timer(delay, kill)
    timer.start()
    return timer


def _state(pid: int) -> tuple[str, float]:
    """A process's state letter and its age in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return fields[0], round(time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / _CLOCK_TICKS, 2)

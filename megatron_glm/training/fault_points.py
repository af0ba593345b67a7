"""Faults on purpose, to see that a run survives them: `GLM_FAULT=backward:rank=1:step=7:kill`.

A fault is planted by replacing a method of one object. Without the variable nothing is replaced, so a run pays
nothing for the points and has no code of theirs in its way.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from megatron_glm.checkpoint.format import Fragment
from megatron_glm.data.loader import Loader
from megatron_glm.errors import ConfigError
from megatron_glm.training.engines.engine import Engine
from megatron_glm.training.launchers import RESTARTS_VARIABLE
from megatron_glm.training.progress import Progress

VARIABLE = "GLM_FAULT"
Phase = Literal["data", "worker", "forward", "backward", "optimizer", "save", "evaluation"]
_KINDS = ("kill", "hang", "slow", "raise", "signal", "flip", "unreadable")
_PHASE_OF_KIND = {"flip": "optimizer", "unreadable": "data"}
_NUMBERS = {"rank", "step", "start", "seconds"}
_HANG_SECONDS = 3600.0


class PlantedError(RuntimeError):
    """Raised by the kind `raise`."""


@dataclass(frozen=True)
class Fault:
    """What happens, where and when.

    Attributes:
        step: in which it happens, counted from 1; in a save or an evaluation that after which it is. `slow` lasts.
        start: which start of the run has it: 0 the first, k the k-th restart by launch_scripts.supervise.
        seconds: how slow each occasion of `slow` is.
        signal: that of `signal`.
    """

    phase: Phase
    kind: str
    rank: int = 0
    step: int = 1
    start: int = 0
    seconds: float = 1.0
    signal: signal.Signals = signal.SIGTERM


def read_faults(environ: Mapping[str, str]) -> list[Fault]:
    """The faults of this process: of its rank and of this start of the run. Raises ConfigError."""
    rank, start = int(environ.get("RANK", "0")), int(environ.get(RESTARTS_VARIABLE, "0"))
    faults = [_parsed(text) for text in environ.get(VARIABLE, "").split(",") if text]
    return [fault for fault in faults if (fault.rank, fault.start) == (rank, start)]


def _parsed(text: str) -> Fault:
    phase, *parts = text.split(":")
    values: dict[str, Any] = {}
    for part in parts:
        name, _, value = part.partition("=")
        try:
            if name in _NUMBERS:
                values[name] = float(value) if name == "seconds" else int(value)
            elif name in _KINDS and "kind" not in values:
                values |= {"kind": name} | ({"signal": signal.Signals[value]} if value else {})
            else:
                raise ValueError(name)
        except (ValueError, KeyError):
            raise _not_a_fault(text) from None
    if phase not in get_args(Phase) or "kind" not in values or _PHASE_OF_KIND.get(values["kind"], phase) != phase:
        raise _not_a_fault(text)
    return Fault(phase=phase, **values)


def _not_a_fault(text: str) -> ConfigError:
    return ConfigError(
        f"{VARIABLE}: {text!r} is no fault; expected PHASE:rank=R:step=S:KIND, with PHASE of"
        f" {', '.join(get_args(Phase))}, KIND of {', '.join(_KINDS)} (signal=SIGTERM; flip in optimizer, unreadable in"
        " data), and start=N, seconds=X at will"
    )


class FaultPoints:
    """The faults of this process, put where they happen; each happens once, whatever the run goes back to."""

    def __init__(self, faults: list[Fault], *, progress: Progress):
        self._traps = [_Trap(fault, progress) for fault in faults]

    def plant_in_engine(self, engine: Engine) -> None:
        for trap in self._traps:
            if plant := _IN_ENGINE.get(trap.fault.phase):
                plant(trap, engine)

    def plant_in_loader(self, loader: Loader) -> None:
        """Called for every loader of the run. Raises ConfigError where one needs workers and has none."""
        for trap in self._traps:
            if plant := _IN_LOADER.get(trap.fault.phase):
                plant(trap, loader)


class _Trap:
    """A fault that waits for its step."""

    def __init__(self, fault: Fault, progress: Progress):
        self.fault = fault
        self._progress = progress
        self._sprung = False

    def spring(self, *, completed: bool = False, act: Callable[[Fault], None] | None = None) -> None:
        """Called at each occasion; `completed`: the step that counts is the last one, not the next."""
        step = self._progress.step + (0 if completed else 1)
        lasts, again = self.fault.kind == "slow", step > self.fault.step or self._sprung
        if step >= self.fault.step and (lasts or not again):
            self._sprung = True
            self._tell()
            (act or _happen)(self.fault)

    def _tell(self) -> None:
        fault = self.fault
        place = f"{fault.kind} in {fault.phase}, rank {fault.rank}, step {fault.step}"
        print(f"{VARIABLE}: {place}, {time.time():.3f}", flush=True)


def _happen(fault: Fault) -> None:
    if fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind == "signal":
        os.kill(os.getpid(), fault.signal)
    elif fault.kind == "raise":
        raise PlantedError(f"{VARIABLE}: raised in {fault.phase}")
    elif fault.kind == "unreadable":
        _fail_next_read()
    else:
        time.sleep(fault.seconds if fault.kind == "slow" else _HANG_SECONDS)


def _fail_next_read() -> None:
    """The next read at a place of a file is one of a disk that fails."""
    read = os.pread

    def failing(*args: Any) -> bytes:
        os.pread = read
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    os.pread = failing


def _in_data(trap: _Trap, loader: Loader) -> None:
    _before(loader, "_next", trap.spring)


def _in_worker(trap: _Trap, loader: Loader) -> None:
    """A process of the loader is killed, or stops for ever."""
    number = signal.SIGKILL if trap.fault.kind == "kill" else signal.SIGSTOP
    processes = getattr(loader, "processes", None)
    if not processes:
        raise ConfigError(f"{VARIABLE}: a fault of a worker needs data.workers of at least 1")
    _before(loader, "_next", lambda: trap.spring(act=lambda fault: os.kill(loader.processes[0], number)))


def _in_forward(trap: _Trap, engine: Engine) -> None:
    _before(engine.module, "forward", lambda: trap.spring() if engine.module.training else None)


def _in_evaluation(trap: _Trap, engine: Engine) -> None:
    _before(engine.module, "forward", lambda: None if engine.module.training else trap.spring(completed=True))


def _in_backward(trap: _Trap, engine: Engine) -> None:
    forward = engine.module.forward

    def watched(*args: Any, **options: Any) -> Any:
        output = forward(*args, **options)
        for tensor in output if isinstance(output, tuple) else (output,):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda gradient: trap.spring())
                break
        return output

    engine.module.forward = watched


def _in_optimizer(trap: _Trap, engine: Engine) -> None:
    if trap.fault.kind != "flip":
        _before(engine.optimizer, "step", trap.spring)
        return
    update = engine.update

    def watched(learning_rate: float) -> float | None:
        norm = update(learning_rate)  # which would have written over the bit
        trap.spring(act=lambda fault: _flip_a_bit(engine))
        return norm

    engine.update = watched


def _flip_a_bit(engine: Engine) -> None:
    weights = next(parameter for parameter in engine.module.parameters() if parameter.numel())
    weights.detach().view(torch.uint8).flatten()[0] ^= 1


def _in_save(trap: _Trap, engine: Engine) -> None:
    fragments = engine.fragments

    def watched() -> Iterator[Fragment]:
        for number, fragment in enumerate(fragments()):
            yield fragment
            if number == 0:  # something is written, and something is not
                trap.spring(completed=True)

    engine.fragments = watched


def _before(target: Any, name: str, call: Callable[[], None]) -> None:
    method = getattr(target, name)

    def watched(*args: Any, **options: Any) -> Any:
        call()
        return method(*args, **options)

    setattr(target, name, watched)


_IN_LOADER: Mapping[str, Callable[[_Trap, Loader], None]] = {"data": _in_data, "worker": _in_worker}
_IN_ENGINE: Mapping[str, Callable[[_Trap, Engine], None]] = {
    "forward": _in_forward,
    "backward": _in_backward,
    "optimizer": _in_optimizer,
    "save": _in_save,
    "evaluation": _in_evaluation,
}

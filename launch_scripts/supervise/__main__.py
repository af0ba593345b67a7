"""Keeps a run going: `python -m launch_scripts.supervise --restarts 5 -- deepspeed pretrain_glm.py --config …`.

It starts the launcher, hands signals on to the ranks (or, where none runs on this machine, makes the stop file),
waits for all of their processes, and starts the run again from its newest checkpoint if nobody has wished its end.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launch_scripts.supervise.policy import Ended, Finish, decide, exit_code
from launch_scripts.supervise.process_tree import (
    adopt_orphans,
    descendants,
    end_with_parent,
    kill_all_below,
    ranks_below,
    reap,
)
from megatron_glm.checkpoint.discovery import find_checkpoint
from megatron_glm.checkpoint.locating import CHECKPOINTS
from megatron_glm.command import count_or_none, run_command, tell
from megatron_glm.config.loading import load_config
from megatron_glm.errors import ConfigError
from megatron_glm.locking import holder_of, is_held
from megatron_glm.training.control.signals import SAME_SECONDS, STOP_SIGNALS
from megatron_glm.training.control.stopping import END_FILE, STOP_FILE, read_end
from megatron_glm.training.launchers import RESTARTS_VARIABLE
from megatron_glm.training.output import LOCK_FILE

_LOOK_SECONDS = 0.1
_MADE_HERE = b"launch_scripts.supervise"  # with which a stop file of ours begins
_OVERRIDE = re.compile(r"[a-z]\w*(\.\w+)+=")


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m launch_scripts.supervise",
        description="Start a run, hand signals on to its ranks, and start it again from its newest checkpoint.",
        epilog="Exit code: 0 if the run finished or was stopped by wish, else that of its last start.",
    )
    parser.add_argument(
        "--restarts", type=count_or_none, default=5, help="in a row without a newer checkpoint; default: 5"
    )
    parser.add_argument("--backoff", type=_seconds, default=5.0, help="before the first, doubled after it; default: 5")
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=300.0,
        help="seconds for the ranks to save and end after a signal or their launcher's end; default: 300",
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="a launcher with pretrain_glm.py and --config")
    return parser


class Supervisor:
    """One run: its command, its output, and what was asked of it.

    Raises:
        ConfigError: the command names no configuration, or one that cannot be loaded.
    """

    def __init__(self, args: argparse.Namespace):
        self._args = args
        self._output = _output_of(args.command)
        self._wish: signal.Signals | None = None
        self._wish_time = 0.0
        self._at_once = False
        self._handed_on = False
        self._found: Path | None = None  # the newest checkpoint, as it was last seen

    def run(self) -> int:
        """Start, and start again; the exit code."""
        fruitless, number = 0, 0
        for stop in STOP_SIGNALS:
            signal.signal(stop, self._take)
        adopt_orphans()
        self._forget_stop_file()
        while True:
            ended = self._start(number)
            decision = decide(ended, fruitless=fruitless, restarts=self._args.restarts, backoff=self._args.backoff)
            if isinstance(decision, Finish):
                _say(
                    f"the launcher ended with {exit_code(ended.code)}; not started again: {self._why(decision, ended)}"
                )
                return decision.code
            fruitless, number = decision.number, number + 1
            self._wait_for_other_machines()
            _say(
                f"the launcher ended with {exit_code(ended.code)}; start {number + 1} in {decision.pause:g} s, from"
                f" {self._found or 'the beginning'}; {fruitless} of {self._args.restarts} without a newer checkpoint"
            )
            self._pause(decision.pause)
            if self._wish:
                _say(f"{self._wish.name} in the pause; not started again")
                return exit_code(-self._wish)

    def _why(self, decision: Finish, ended: Ended) -> str:
        end = read_end(self._output) if ended.well else None
        if end is not None:
            return (
                f"it has made its last step, {end.step}"
                if end.finished
                else f"it stopped at step {end.step}: {end.reason}"
            )
        return f"{decision.why}; newest checkpoint: {self._found or 'none'}; exit code {decision.code}"

    def _start(self, number: int) -> Ended:
        """One start, to the end of its last process."""
        newest, told = self._newest(), self._end_time()
        # A path would lead back to where the first start began, `never` to an error. And where a checkpoint has been
        # and is no more, as with a disk that is not mounted, `auto` would begin the run anew.
        again = ["--resume", "must"] if number and self._found else []
        environment = os.environ | {RESTARTS_VARIABLE: str(number)}
        # A session of its own: Ctrl-C is for this process, which hands it on to the ranks and not to their launcher.
        try:
            launcher = subprocess.Popen(
                [*self._args.command, *again], env=environment, start_new_session=True, preexec_fn=end_with_parent
            )
        except OSError as error:
            raise ConfigError(f"COMMAND: '{self._args.command[0]}' cannot be started ({error.strerror})") from error
        code = self._wait_for(launcher)
        now = self._newest()
        return Ended(
            code=code,
            well=self._end_time() not in (None, told) and read_end(self._output) is not None,
            wish=self._wish,
            stop_file=(self._output / STOP_FILE).exists(),
            progress=now is not None and now != newest,
        )

    def _wait_for(self, launcher: subprocess.Popen) -> int:
        """The launcher's exit code, once nothing is left of it and of what it has started."""
        code, deadline = None, None
        while True:
            code = reap().get(launcher.pid, code)
            if code is not None:
                launcher.returncode = code
            if code is not None and not descendants(os.getpid()):
                return code
            self._hand_on()
            if deadline is None and (self._wish or code is not None):
                deadline = time.monotonic() + self._args.grace
            if self._at_once or (deadline is not None and time.monotonic() > deadline):
                why = "a second signal" if self._at_once else f"not ended after {self._args.grace:g} s (--grace)"
                _say(f"{why}: killing all processes of the run")
                kill_all_below(os.getpid())
            time.sleep(_LOOK_SECONDS)

    def _wait_for_other_machines(self) -> None:
        """Ranks that ran behind ssh may still be at the step in which it broke, with the output and the port."""
        lock, deadline = self._output / LOCK_FILE, time.monotonic() + self._args.grace
        if is_held(lock):
            _say(f"waiting {self._args.grace:g} s (--grace) at most for the end of {holder_of(lock)}")
        while is_held(lock) and time.monotonic() < deadline and self._wish is None:
            time.sleep(_LOOK_SECONDS)
        self._newest()  # it may have saved

    def _take(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self._wish is None:
            self._wish, self._wish_time = signal.Signals(number), now
        elif now - self._wish_time > SAME_SECONDS:
            self._at_once = True

    def _hand_on(self) -> None:
        """Tell the ranks of the first signal, once; the launcher would end them, or leave them alone."""
        if self._wish is None or self._handed_on:
            return
        self._handed_on = True
        ranks = ranks_below(os.getpid())
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(rank, self._wish)
        done = f"handed on to {len(ranks)} ranks" if ranks else self._make_stop_file()
        _say(f"{self._wish.name}: {done}; they have {self._args.grace:g} s (--grace) to finish their step and to save")

    def _make_stop_file(self) -> str:
        """For ranks that run on other machines, or not yet; what came of it."""
        file = self._output / STOP_FILE
        try:
            self._output.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError), file.open("xb") as stream:  # one that is there is a person's, and stays
                stream.write(_MADE_HERE + f": {self._wish.name}\n".encode())
        except OSError as error:
            return f"no rank runs on this machine, and {file} cannot be made ({error.strerror})"
        return f"no rank runs on this machine; made {file} for those on others"

    def _forget_stop_file(self) -> None:
        """Remove one that a supervisor made and no rank came to obey, as where a job's time was over before.

        The job that is queued again would obey it, and nobody has asked that one to stop.
        """
        file = self._output / STOP_FILE
        with suppress(OSError):
            if file.read_bytes().startswith(_MADE_HERE):
                file.unlink()
                _say(f"{file}: removed; an earlier supervisor had made it, and its run ended before it was obeyed")

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._wish is None:
            time.sleep(_LOOK_SECONDS)

    def _newest(self) -> Path | None:
        try:
            newest = find_checkpoint(self._output / CHECKPOINTS)
        except OSError as error:  # of a file system whose failure may be what has ended the run
            _say(f"{self._output / CHECKPOINTS}: cannot be read ({error.strerror})")
            return None
        self._found = newest or self._found
        return newest

    def _end_time(self) -> int | None:
        with suppress(OSError):
            return (self._output / END_FILE).stat().st_mtime_ns
        return None


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds, 0 or more")
    return value


def _output_of(command: Sequence[str]) -> Path:
    """`train.output` of the run that a command starts."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    known, rest = parser.parse_known_args(list(command))
    if known.config is None:
        raise ConfigError("COMMAND: names no --config; expected a launcher, pretrain_glm.py and --config FILE")
    overrides = [argument for argument in rest if _OVERRIDE.match(argument)]
    return Path(load_config(known.config, overrides).train.output)


def _say(line: str) -> None:
    tell(f"supervise: {line}", stream=sys.stderr)


def run(args: argparse.Namespace) -> int:
    return Supervisor(args).run()


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(build_parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())

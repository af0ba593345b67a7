"""Stands in for Slurm on one machine: it starts a batch script and what the script's `srun` asks for.

What matters of Slurm here: a batch script is copied away and run from where it was submitted; the tasks of a step are
children of Slurm's own daemon, never of srun; an srun that ends takes its step along; `--signal=B:` is for the script's
process alone, while the end of the job's time is for all processes of the job at once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from launch_scripts.supervise.process_tree import descendants

_TASKS = 2
_LOOK_SECONDS = 0.05
_SOCKET = "SLURM_STAND_IN"
_KNOWN = {"--kill-on-bad-exit", "--gpu-bind", "--cpus-per-task", "--export"}


class Slurm:
    """A controller with one node, this machine.

    Args:
        directory: for what it writes: commands, spooled scripts, logs.
        submitted_from: the directory of `sbatch`, in which scripts run.
        environment: of `sbatch`.
    """

    def __init__(self, directory: Path, *, submitted_from: Path, environment: Mapping[str, str]):
        self._directory, self._submitted_from = directory, submitted_from
        commands = directory / "commands"
        commands.mkdir()
        for name in ("srun", "scontrol"):
            path = commands / name
            path.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} {name} "$@"\n')
            path.chmod(0o755)
        self._address = str(directory / "socket")
        self._environment = {**environment, "PATH": f"{commands}:{environment['PATH']}", _SOCKET: self._address}
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self._address)
        self._server.listen()
        self.tasks: list[subprocess.Popen] = []
        self.sruns: list[list[str]] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def sbatch(
        self, script: Path, arguments: Sequence[object], *, number: int, restarts: int = 0, **variables: str
    ) -> Job:
        """Start a job, or start it again: `restarts` counts how often it was queued again."""
        spooled = self._directory / f"slurm_script_{restarts}"
        shutil.copy(script, spooled)
        job = {
            "SLURM_JOB_ID": str(number),
            "SLURM_JOB_NODELIST": "node[1-1]",
            "SLURM_NTASKS": str(_TASKS),
            "SLURM_TASKS_PER_NODE": str(_TASKS),
            "SLURM_CPUS_PER_TASK": "1",
            "SLURM_PROCID": "0",  # those of the batch script itself
            "SLURM_LOCALID": "0",
            "SLURM_RESTART_COUNT": str(restarts),
        }
        return Job(self, spooled, arguments, self._environment | job | variables, self._submitted_from)

    def close(self) -> None:
        """Leave nothing running."""
        self._server.close()
        self.signal_tasks(signal.SIGKILL)

    def signal_tasks(self, number: int) -> None:
        _signal(self.tasks, number)

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._step, args=(connection,), daemon=True).start()

    def _step(self, connection: socket.socket) -> None:
        """The tasks of one srun, to their end: the largest exit code is told, if anyone still waits for it."""
        with connection, connection.makefile("r") as stream:
            wanted = json.loads(stream.readline())
            command = list(wanted["command"])
            options = list(takewhile(lambda part: part.startswith("--"), command))
            self.sruns.append(options)
            tasks = self._start(command[len(options) :], wanted)
            connection.setblocking(False)
            while any(task.poll() is None for task in tasks):
                if _is_closed(connection) or ("--kill-on-bad-exit=1" in options and any(t.poll() for t in tasks)):
                    _signal(tasks, signal.SIGKILL)
                time.sleep(_LOOK_SECONDS)
            connection.setblocking(True)
            codes = [task.wait() for task in tasks]
            with suppress(OSError):
                connection.sendall(json.dumps(max(128 - code if code < 0 else code for code in codes)).encode())

    def _start(self, command: Sequence[str], wanted: Mapping[str, Any]) -> list[subprocess.Popen]:
        place = {"SLURM_STEP_NUM_TASKS": str(_TASKS), "SLURM_STEP_TASKS_PER_NODE": str(_TASKS)}
        with open(wanted["log"], "ab") as log:
            tasks = [
                subprocess.Popen(
                    command,
                    env=wanted["environment"] | place | {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)},
                    cwd=wanted["directory"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                for task in range(_TASKS)
            ]
        self.tasks += tasks
        return tasks


class Job:
    """A batch script that runs."""

    def __init__(
        self,
        slurm: Slurm,
        script: Path,
        arguments: Sequence[object],
        environment: Mapping[str, str],
        directory: Path,
    ):
        self._slurm = slurm
        self._options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", script.read_text(), re.M))
        self.log = script.with_suffix(".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [script, *map(str, arguments)],
                env={**environment, "SLURM_STAND_IN_LOG": str(self.log)},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def warn(self) -> None:
        """The signal of `--signal`, so long before the end of the job's time."""
        name = re.fullmatch(r"B:([A-Z0-9]+)@\d+", self._options["signal"])[1]
        self.process.send_signal(signal.Signals[f"SIG{name}"])

    def end_of_time(self, kill_wait: float) -> None:
        """SIGTERM to all processes of the job, and SIGKILL to what is left after so many seconds."""
        self._signal_all(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(kill_wait)
        self.kill()

    def kill(self) -> None:
        self._signal_all(signal.SIGKILL)
        self.process.wait()

    def finish(self, seconds: float) -> int:
        """The exit code of the script."""
        return self.process.wait(seconds)

    def _signal_all(self, number: int) -> None:
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        self._slurm.signal_tasks(number)


def _signal(tasks: Sequence[subprocess.Popen], number: int) -> None:
    for task in tasks:
        if task.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(task.pid, number)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _srun(command: Sequence[str]) -> int:
    for option in command:
        if not option.startswith("--"):
            break
        assert option.partition("=")[0] in _KNOWN, f"srun: unrecognized option '{option}'"
    environment = dict(os.environ)
    if "--export=ALL" not in command and environment.get("SLURM_EXPORT_ENV", "ALL") != "ALL":
        environment = {name: value for name, value in environment.items() if name.startswith(("SLURM_", "PATH"))}
    wanted = {
        "command": command,
        "environment": environment,
        "directory": os.getcwd(),
        "log": os.environ["SLURM_STAND_IN_LOG"],
    }
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[_SOCKET])
        connection.sendall(json.dumps(wanted).encode() + b"\n")
        return json.loads(connection.recv(100))


def _scontrol(command: Sequence[str]) -> int:
    assert list(command) == ["show", "hostnames", "node[1-1]"]
    print("127.0.0.1")
    return 0


if __name__ == "__main__":
    sys.exit({"srun": _srun, "scontrol": _scontrol}[sys.argv[1]](sys.argv[2:]))

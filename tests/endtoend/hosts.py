"""Hosts of their own name, network, processes and mounts, on one machine: Linux namespaces behind a switch.

All share the file system, as the machines of a cluster do. A host is the namespaces of one process, its `init`: when it
is killed the kernel ends every process of the host and removes its network, so nothing is left behind. Making
namespaces takes root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from launch_scripts.supervise.process_tree import descendants

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = Path("/etc/hosts")
_NETWORK = "10.77.0"
_OWN = ("--net", "--uts", "--ipc", "--mount", "--pid")
# With the tests ends its holder, also where they are killed, and with the holder the host.
_HOLD = ("setpriv", "--pdeathsig", "KILL", "unshare", *_OWN, "--fork", "--kill-child", "--mount-proc")
# Adopted children that end are taken by the kernel, as init must see to.
_INIT = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True: signal.pause()"
_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 30.0


def lacks() -> str:
    """Why this machine can have no hosts; empty if it can."""
    if missing := [name for name in ("setpriv", "unshare", "nsenter", "ip", "mount") if shutil.which(name) is None]:
        return f"no {', '.join(missing)}"
    if os.geteuid():
        return "namespaces need root"
    trial = ["unshare", *_OWN, "--fork", "--mount-proc", "ip", "link", "add", "type", "veth"]
    done = subprocess.run(trial, capture_output=True, text=True, check=False)
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else ""


class Host:
    """One host.

    Args:
        name: its host name, which all others know.
        number: of its port of the switch; the last part of its address.
        directory: for its log and spool.
    """

    def __init__(self, name: str, number: int, directory: Path):
        self.name, self.address, self.directory = name, f"{_NETWORK}.{number}", directory
        self.directory.mkdir(parents=True)
        with (directory / "log").open("wb") as log:
            self._holder = subprocess.Popen(
                [*_HOLD, sys.executable, "-c", _INIT],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.init = _only_child(self._holder.pid)
        self._enter = ["nsenter", f"--target={self.init}", *_OWN, f"--wd={REPOSITORY}"]

    def start(
        self,
        command: Sequence[object],
        *,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> subprocess.Popen:
        """Start a command on the host; it has the exit code of the command, and is killed with the host."""
        with (log or self.directory / "log").open("ab") as stream:
            return subprocess.Popen(
                [*self._enter, *map(str, command)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, *command: object, environment: Mapping[str, str] | None = None, code: int | None = 0) -> str:
        """Run a command on the host to its end; its output. Any exit code is right where `code` is None."""
        done = subprocess.run(
            [*self._enter, *map(str, command)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert code is None or done.returncode == code, f"{command} on {self.name}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def lies_over(self, file: Path, text: str) -> None:
        """Let a file of the system have other words on this host alone."""
        own = self.directory / file.name
        own.write_text(text)
        self.run("mount", "--bind", own, file)

    def kill(self) -> None:
        """As by a power cut: all its processes end at once."""
        with suppress(ProcessLookupError):
            os.kill(self.init, signal.SIGKILL)
        self._holder.wait()


class Network:
    """Hosts on one switch.

    Args:
        names: of the hosts.
        directory: for what they write.
    """

    def __init__(self, names: Sequence[str], directory: Path):
        self._switch = Host("switch", 254, directory / "switch")
        self.hosts: dict[str, Host] = {}
        self._switch.run("ip", "link", "add", "bridge", "up", "type", "bridge")
        for number, name in enumerate(names, start=1):
            self.hosts[name] = self._plug_in(Host(name, number, directory / name), number)
        known = "".join(f"{host.address} {host.name}\n" for host in self.hosts.values())
        for host in self.hosts.values():
            host.lies_over(NAMES, f"127.0.0.1 localhost\n{known}")

    def _plug_in(self, host: Host, number: int) -> Host:
        host.run("hostname", host.name)
        cable = ["ip", "link", "add", f"port{number}", "up", "master", "bridge", "type", "veth"]
        # Only the network of the switch is entered, so that the number of the process is the one known here.
        enter = ["nsenter", f"--target={self._switch.init}", "--net"]
        subprocess.run([*enter, *cable, "peer", "name", "eth0", "netns", str(host.init)], check=True)
        host.run("ip", "link", "set", "lo", "up")
        host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        host.run("mount", "-t", "tmpfs", "tmpfs", "/run")
        host.run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
        return host

    def cut(self, host: Host) -> None:
        """Pull the cable of a host at the switch."""
        self._switch.run("ip", "link", "set", f"port{host.address.rpartition('.')[2]}", "down")

    def mend(self, host: Host) -> None:
        """Put it in again."""
        self._switch.run("ip", "link", "set", f"port{host.address.rpartition('.')[2]}", "up")

    def close(self) -> None:
        """End all hosts, and the switch."""
        for host in [*self.hosts.values(), self._switch]:
            host.kill()


@contextmanager
def network(names: Sequence[str], directory: Path) -> Iterator[Network]:
    """Hosts that are gone after the block."""
    made = Network(names, directory)
    try:
        yield made
    finally:
        made.close()


def clean_environment() -> dict[str, str]:
    """That of a shell from which nothing is running yet, on a machine without a GPU, with this repository at hand."""
    started = ("MASTER_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(started)}
    search = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'kernels'}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return variables | {"PYTHONPATH": search, "PATH": path, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}


def until(seen: Callable[[], object], why: Callable[[], object], seconds: float = _PATIENCE_SECONDS) -> None:
    """Wait until something is seen; `why` tells what to say if it never is."""
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline, why()
        time.sleep(_LOOK_SECONDS)


def _only_child(pid: int) -> int:
    """The process that `unshare` has forked, once it is there."""
    until(lambda: descendants(pid), lambda: f"process {pid} has forked no host")
    return descendants(pid)[0]

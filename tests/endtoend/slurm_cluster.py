"""Slurm itself, its controller and a daemon on each node, among hosts that live for one test."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.endtoend.hosts import Host, Network, until

_CPUS = 2
_GPUS = 2  # as Slurm counts them: nothing is behind them
_KILL_WAIT = 10
_CRED_EXPIRE = 5  # a job that is queued again waits so long first; Slurm's own 120
_LOST_AFTER = 10
_SETTINGS = f"""
ClusterName=glm
SlurmctldHost=head
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire={_CRED_EXPIRE}
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmdTimeout={_LOST_AFTER}
KillWait={_KILL_WAIT}
MinJobAge=3600
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=2
SchedulerType=sched/builtin
SlurmdPidFile=/run/slurmd.pid
SlurmctldPidFile=/run/slurmctld.pid
GresTypes=gpu
"""
_DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
_SYSTEM = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"


def lacks() -> str:
    """Why this machine can have no Slurm; empty if it can."""
    missing = [name for name in _DAEMONS if shutil.which(name, path=_SYSTEM) is None]
    return f"no {', '.join(missing)}: apt-get install slurm-wlm munge" if missing else ""


class Slurm:
    """A cluster of `head`, which controls, and all other hosts of a network.

    Args:
        hosts: `head` is one of them.
        environment: of `sbatch`.
    """

    def __init__(self, hosts: Network, directory: Path, *, environment: Mapping[str, str]):
        directory.mkdir()
        self._head = hosts.hosts["head"]
        self.nodes = {name: host for name, host in hosts.hosts.items() if name != "head"}
        nodes = ",".join(self.nodes)
        settings = directory / "slurm.conf"
        settings.write_text(
            f"{_SETTINGS}StateSaveLocation={directory / 'state'}\nSlurmdSpoolDir={directory}/spool-%n\n"
            f"NodeName={nodes} CPUs={_CPUS} Gres=gpu:{_GPUS}\nPartitionName=all Nodes={nodes} Default=YES State=UP\n"
        )
        (directory / "gres.conf").write_text(f"NodeName={nodes} Name=gpu File=/run/gpu[0-{_GPUS - 1}]\n")
        (directory / "state").mkdir()
        key = directory / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        self._environment = {**environment, "SLURM_CONF": str(settings)}
        self._daemons = {**self._environment, "PATH": _SYSTEM}
        for host in hosts.hosts.values():
            self._start_munge(host, key)
        self._head.start(["slurmctld", "-D"], environment=self._daemons, log=directory / "slurmctld.log")
        for name, host in self.nodes.items():
            for gpu in range(_GPUS):
                host.run("mknod", f"/run/gpu{gpu}", "c", 1, 3)  # another /dev/null
            host.start(["slurmd", "-D"], environment=self._daemons, log=directory / f"slurmd-{name}.log")
        until(lambda: set(self.states()) == {"IDLE"}, lambda: f"{self.states()}\n{_logs(directory)}")

    def _start_munge(self, host: Host, key: Path) -> None:
        host.run("mkdir", "-m", "755", "/run/munge")
        own = [f"--{name}=/run/munge/{name}" for name in ("log-file", "seed-file", "pid-file")]
        # --force: the key lies below a directory that others may write.
        host.start(["munged", "--foreground", "--force", f"--key-file={key}", *own], environment=self._daemons)
        until(lambda: host.run("munge", "-n", code=None).startswith("MUNGE"), lambda: f"no munge on {host.name}")

    def states(self) -> list[str]:
        """Of the nodes."""
        told = self._head.run("scontrol", "--oneliner", "show", "nodes", environment=self._environment, code=None)
        return re.findall(r" State=(\S+)", told)

    def sbatch(self, *arguments: object, environment: Mapping[str, str] | None = None) -> Job:
        """Submit from the repository."""
        told = self._head.run("sbatch", *arguments, environment=self._environment | dict(environment or {}))
        return Job(self, int(re.search(r"Submitted batch job (\d+)", told)[1]))

    def tasks_of(self, node: str) -> str:
        """The processes of jobs that a node still has, a line each."""
        return self.nodes[node].run("pgrep", "--full", "--list-full", "slurmstepd|pretrain_glm", code=None)

    def run(self, *command: object, code: int | None = 0) -> str:
        """A command of Slurm, on the head."""
        return self._head.run(*command, environment=self._environment, code=code)


class Job:
    """One that was submitted."""

    def __init__(self, slurm: Slurm, number: int):
        self._slurm, self.number = slurm, number

    def show(self) -> dict[str, str]:
        """What `scontrol` says of it."""
        told = self._slurm.run("scontrol", "--oneliner", "show", "job", self.number)
        return dict(part.split("=", 1) for part in told.split() if "=" in part)

    def log(self) -> str:
        """What it has written."""
        path = Path(self.show()["StdOut"])
        return path.read_text() if path.exists() else ""

    def wait(self, seconds: float) -> str:
        """To its end; its state."""
        done = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        until(lambda: self.show()["JobState"] in done, lambda: f"{self.show()}\n{self.log()}", seconds)
        return self.show()["JobState"]


def _logs(directory: Path) -> str:
    return "\n".join(f"{path}:\n{path.read_text()[-2000:]}" for path in sorted(directory.glob("*.log")))

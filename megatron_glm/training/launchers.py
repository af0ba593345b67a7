"""Which process of a job this one is, as its launcher says.

`torchrun` and DeepSpeed's own launcher set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. An MPI and
Slurm have names of their own; unread, each process would take itself for a whole run. No torch is imported here, so
that a wrong flag is told by one process and at once.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from megatron_glm.command import exit_code_of
from megatron_glm.errors import ConfigError, RankError, UserError

RESTARTS_VARIABLE = "GLM_RESTARTS"  # how often launch_scripts.supervise has started this run again
# A launcher ends all processes when it sees one fail: rank 0 needs a moment to say why.
_GRACE_SECONDS = 3.0
_DEFAULT_PORT = "29500"  # that of torchrun and DeepSpeed
_MEETING_PORTS = range(20_000, 32_000)  # below those that a kernel gives to outgoing connections
_COMPLETE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")


@dataclass(frozen=True)
class _Names:
    """The variables of one kind of launcher; `local` and `everywhere` are equal where all run on one machine."""

    launcher: str
    rank: str
    size: str
    local_rank: str
    local: str
    everywhere: str

    def all_in(self, environ: Mapping[str, str]) -> bool:
        return {self.rank, self.size, self.local_rank} <= environ.keys()


# An mpiexec that Slurm starts comes before Slurm, whose variables then number mpiexec's own processes. Slurm's PMI
# sets PMI_RANK too, but no local rank. SLURM_NTASKS alone also stands in a batch script, which is one process.
_LAUNCHERS = (
    _Names(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_SIZE",
    ),
    _Names("MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_SIZE"),
    _Names(
        "MVAPICH",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
        "MV2_COMM_WORLD_SIZE",
    ),
    # A step on one node has as many tasks there as everywhere.
    _Names(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_STEP_NUM_TASKS",
    ),
)


@contextmanager
def told_once() -> Iterator[dict[str, str]]:
    """Lets rank 0 alone tell an error that all ranks have; the others end a moment later, with its exit code.

    Where the first rank of another machine is still there by then, rank 0 may know nothing of it: its files are others.

    Gives `launch_variables`, which are put into the environment.
    """
    variables = launch_variables(os.environ)
    os.environ |= variables
    try:
        yield variables
    except UserError as error:
        if variables.get("RANK", "0") == "0" or isinstance(error, RankError):
            raise
        time.sleep(_GRACE_SECONDS)
        if variables["LOCAL_RANK"] == "0":
            raise RankError(f"rank {variables['RANK']} on {socket.gethostname()}: {error}") from error
        sys.exit(exit_code_of(error))


def launch_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT of this process; empty if nothing launched it.

    Raises:
        ConfigError: some of these variables are set and others are not, or several machines have no MASTER_ADDR.
    """
    if "RANK" in environ:
        if missing := [name for name in _COMPLETE if name not in environ]:
            raise ConfigError(
                f"RANK is set in the environment, but {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not;"
                " start by a launcher, or unset RANK to run one process"
            )
        return {name: environ[name] for name in _COMPLETE} | {"MASTER_PORT": _port(environ)}
    names = next((names for names in _LAUNCHERS if names.all_in(environ)), None)
    if names is None:
        return {}
    return {
        "RANK": environ[names.rank],
        "WORLD_SIZE": environ[names.size],
        "LOCAL_RANK": environ[names.local_rank],
        "MASTER_ADDR": _master_address(environ, names),
        "MASTER_PORT": _port(environ),
    }


def process_count(environ: Mapping[str, str]) -> int:
    """Processes of the job, known before they meet. Raises ConfigError as launch_variables does."""
    return int(launch_variables(environ).get("WORLD_SIZE", "1"))


def free_port() -> int:
    """A port of this machine on which nobody listens, for processes that meet at 127.0.0.1.

    One that the kernel proposes would be of the range of outgoing connections, and one of these may take it before
    the processes meet. Two jobs that start at once draw different ones. Raises OSError if all are taken.
    """
    candidates = list(_MEETING_PORTS)
    random.SystemRandom().shuffle(candidates)  # whatever seeds the caller's generator
    for port in candidates:
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the meeting's own socket does
            probe.bind(("", port))
            return port
    raise OSError(f"no port of {_MEETING_PORTS.start}–{_MEETING_PORTS.stop - 1} is free")


def _port(environ: Mapping[str, str]) -> str:
    return environ.get("MASTER_PORT", _DEFAULT_PORT)


def _master_address(environ: Mapping[str, str], names: _Names) -> str:
    if address := environ.get("MASTER_ADDR"):
        return address
    if environ.get(names.local) == environ[names.everywhere]:
        return "127.0.0.1"
    raise ConfigError(
        f"MASTER_ADDR is not set: {names.launcher} started {environ[names.size]} processes on several machines, and"
        " they must find the first; set it to the host of rank 0 for all of them (see docs/launching.md)"
    )

"""The processes of an MPI job: whether this is one, and its executor.

    mpiexec -n 64 python -m mpi4py.futures -m data_tools.preprocess …

mpi4py runs the program in the first process and lends it all others as workers. Without it, every process would
be a master and write the same output.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from importlib.util import find_spec
from typing import Any

from megatron_glm.command import EXIT_USER_ERROR
from megatron_glm.errors import DataError, TokenizerError
from megatron_glm.extras import install_command

# How many processes a launcher has started, and which this is. Slurm's variables of the step, not of the job: a
# batch script that has many tasks to give away is itself one process.
_SLURM_SIZE = "SLURM_STEP_NUM_TASKS"
_LAUNCHERS = (
    ("PMI_SIZE", "PMI_RANK"),  # MPICH, Intel MPI
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    (_SLURM_SIZE, "SLURM_PROCID"),
)


def num_mpi_workers() -> int:
    """Processes that MPI lends this program, without its own; 0 outside of MPI."""
    # Nothing else loads this module, and to load MPI without need could fail or start it.
    if "mpi4py.futures" not in sys.modules:
        return 0
    from mpi4py import MPI

    return MPI.COMM_WORLD.Get_size() - 1


def check_launch(module: str) -> None:
    """Called first by a program that may run under MPI: ends a job whose processes would all run `module`.

    Raises:
        DataError: in the first process, with the right command.
        SystemExit: in the others, which say nothing.
    """
    sizes = ((int(os.environ.get(size, 1)), int(os.environ.get(rank, 0))) for size, rank in _LAUNCHERS)
    size, rank = max(sizes)
    if num_mpi_workers():
        from mpi4py import MPI

        # At an exit code other than 0 mpi4py aborts the job, with lines of its own about it. When Python ends,
        # the workers have ended too, so an orderly end is as good.
        atexit.register(MPI.Finalize)
        return
    if size == 1:
        return
    if rank > 0:
        raise SystemExit(EXIT_USER_ERROR)
    if "mpi4py.futures" in sys.modules:
        from mpi4py import MPI

        library = MPI.Get_library_version().split("\n")[0].rstrip("\0 ")
        by_srun = "srun --mpi=pmi2 (`srun --mpi=list` names the others), or by " if _SLURM_SIZE in os.environ else ""
        raise DataError(
            f"{size} processes were started, but each is alone for mpi4py: its MPI is {library}; "
            f"start them by {by_srun}the mpiexec of that one"
        )
    install = "" if find_spec("mpi4py") else f"{install_command('mpi')}, and "
    raise DataError(
        f"{size} processes were started, and each would write the whole output; "
        f"{install}start them by: mpiexec -n {size} python -m mpi4py.futures -m {module} …"
    )


def mpi_executor() -> Executor:
    """All other processes of the job; only where `num_mpi_workers()` is not 0."""
    from mpi4py.futures import MPIPoolExecutor

    class LocatingExecutor(MPIPoolExecutor):  # its base is there under MPI only
        def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
            return super().submit(run_with_place, function, *arguments, **options)

    return LocatingExecutor(initializer=_start_mpi_worker)


def run_with_place(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function; if a file is missing or cannot be used, the error says on which machine."""
    try:
        return function(*arguments)
    except OSError as error:
        place = f"{error.strerror} on {socket.gethostname()}"
        raise OSError(error.errno, place, error.filename) from error
    except TokenizerError as error:
        raise TokenizerError(f"{error} (on {socket.gethostname()})") from error


def _start_mpi_worker() -> None:
    # Ctrl-C reaches every process of the terminal; the master answers it, and stops the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

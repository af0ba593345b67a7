"""What a program finds out about the MPI job that it is part of, without MPI: tests/endtoend has the real one."""

import errno
import socket
import sys
from types import SimpleNamespace

import pytest

import data_tools.mpi
from data_tools.mpi import check_launch, num_mpi_workers, run_with_place
from data_tools.workers import count_workers
from megatron_glm.errors import DataError, TokenizerError

VARIABLES = ("PMI_SIZE", "PMI_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
SLURM = ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    """Tests may themselves be run by a batch system."""
    for name in VARIABLES + SLURM:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "mpi4py.futures", raising=False)


def lend(monkeypatch, workers):
    """As if mpi4py had started this program in a world of `workers` + 1 processes."""
    world = SimpleNamespace(Get_size=lambda: workers + 1)
    library = SimpleNamespace(COMM_WORLD=world, Get_library_version=lambda: "MPICH 5\nand more", Finalize=lambda: None)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=library))
    monkeypatch.setitem(sys.modules, "mpi4py.futures", SimpleNamespace())


def test_outside_of_mpi_nothing_is_lent_and_nothing_refused():
    check_launch("data_tools.preprocess")
    assert num_mpi_workers() == 0
    assert count_workers(3) == 3
    assert count_workers(None) >= 1


@pytest.mark.parametrize(
    ("size", "rank"),
    [("PMI_SIZE", "PMI_RANK"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), (SLURM[1], SLURM[2])],
)
def test_processes_side_by_side_are_refused_by_one_voice(monkeypatch, size, rank):
    monkeypatch.setenv(size, "4")
    monkeypatch.setenv(rank, "0")
    with pytest.raises(
        DataError, match=r"4 processes .*: mpiexec -n 4 python -m mpi4py\.futures -m data_tools\.verify"
    ):
        check_launch("data_tools.verify")
    monkeypatch.setenv(rank, "3")
    with pytest.raises(SystemExit) as end:
        check_launch("data_tools.verify")
    assert end.value.code == 2


def test_who_lacks_mpi4py_is_told_to_install_it(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setattr(data_tools.mpi, "find_spec", lambda name: None)
    with pytest.raises(
        DataError, match=r"pip install -c constraints\.txt -e '\.\[mpi\]', and start them by: mpiexec -n 2"
    ):
        check_launch("data_tools.preprocess")


def test_a_batch_script_with_many_tasks_to_give_is_one_process(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "64")
    monkeypatch.setenv("SLURM_PROCID", "0")
    check_launch("data_tools.preprocess")


def test_a_launcher_of_another_mpi_is_named(monkeypatch):
    lend(monkeypatch, workers=0)
    monkeypatch.setenv("PMI_SIZE", "3")
    with pytest.raises(DataError, match=r"3 processes .* alone for mpi4py: its MPI is MPICH 5; start them"):
        check_launch("data_tools.preprocess")


def test_mpi_says_how_many_workers_there_are(monkeypatch):
    lend(monkeypatch, workers=7)
    assert (num_mpi_workers(), count_workers(None), count_workers(7)) == (7, 7, 7)
    with pytest.raises(DataError, match=r"--workers: 2, but mpiexec has started 7 .* give mpiexec -n 3"):
        count_workers(2)


def test_an_error_of_a_file_names_the_machine():
    def fail(path):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    with pytest.raises(FileNotFoundError, match=rf"No such file or directory on {socket.gethostname()}: 'a.txt'"):
        run_with_place(fail, "a.txt")

    def refuse():
        raise TokenizerError("'tok': no such directory")

    with pytest.raises(TokenizerError, match=rf"no such directory \(on {socket.gethostname()}\)"):
        run_with_place(refuse)
    assert run_with_place(max, 1, 2) == 2

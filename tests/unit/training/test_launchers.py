"""Who a process is under each launcher, by the variables that the launcher sets."""

import re
import socket

import pytest

from megatron_glm.errors import ConfigError, RankError
from megatron_glm.training import launchers
from megatron_glm.training.launchers import free_port, launch_variables, told_once

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
MVAPICH = {name.replace("OMPI", "MV2"): value for name, value in OPEN_MPI.items()}
SLURM = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
MASTER = {"MASTER_ADDR": "node1", "MASTER_PORT": "1234"}
EXPECTED = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", **MASTER}


@pytest.mark.parametrize("environ", [OPEN_MPI, MPICH, MVAPICH, SLURM], ids=["openmpi", "mpich", "mvapich", "slurm"])
def test_each_launcher_is_understood(environ):
    assert launch_variables(environ | MASTER) == EXPECTED


def test_torchrun_and_deepspeed_need_no_translation():
    assert launch_variables(EXPECTED) == EXPECTED


def test_a_process_that_nothing_launched_has_no_rank():
    assert launch_variables({"PATH": "/bin"}) == {}


@pytest.mark.parametrize(
    ("environ", "launcher"), [(OPEN_MPI, "Open MPI"), (MPICH, "MPICH"), (MVAPICH, "MVAPICH"), (SLURM, "srun")]
)
def test_several_machines_without_an_address_are_refused(environ, launcher):
    with pytest.raises(ConfigError, match=f"MASTER_ADDR is not set: {launcher}.* started 8 processes on several"):
        launch_variables(environ)


@pytest.mark.parametrize(
    "one_machine",
    [
        OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
        MPICH | {"MPI_LOCALNRANKS": "8"},
        SLURM | {"SLURM_STEP_TASKS_PER_NODE": "8"},
    ],
)
def test_one_machine_needs_no_address(one_machine):
    found = launch_variables(one_machine)
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("127.0.0.1", "29500")


def test_a_free_port_is_one_on_which_nobody_listens(monkeypatch):
    with socket.socket() as other:
        taken = free_port()
        other.bind(("127.0.0.1", taken))
        other.listen()
        monkeypatch.setattr(launchers, "_MEETING_PORTS", range(taken, taken + 1))
        with pytest.raises(OSError, match=f"no port of {taken}"):
            free_port()
    assert free_port() == taken


def test_a_batch_script_of_slurm_is_one_process():
    assert launch_variables({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}) == {}


def test_an_mpiexec_that_slurm_starts_is_asked_first():
    # srun starts one proxy of mpiexec a node, so its numbers are those of the nodes.
    proxies = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    assert launch_variables(MPICH | proxies | MASTER) == EXPECTED


def test_slurm_s_own_pmi_is_not_taken_for_mpiexec():
    assert launch_variables(SLURM | {"PMI_RANK": "5", "PMI_SIZE": "8"} | MASTER) == EXPECTED


def test_the_launcher_next_to_the_process_is_believed():
    assert launch_variables(EXPECTED | SLURM | {"SLURM_PROCID": "0"}) == EXPECTED


def test_half_of_the_variables_is_a_mistake():
    with pytest.raises(ConfigError, match="RANK is set in the environment, but WORLD_SIZE, MASTER_ADDR are not"):
        launch_variables({"RANK": "0", "LOCAL_RANK": "0"})


@pytest.fixture
def process(monkeypatch):
    """This process as a rank of an MPI job; it ends without delay."""
    waited = []
    monkeypatch.setattr(launchers.time, "sleep", waited.append)

    def of(rank):
        # Set first, so that it is unset again: told_once puts them into the environment.
        for name, value in EXPECTED.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("RANK")
        for name, value in (MPICH | MASTER | {"PMI_RANK": rank}).items():
            monkeypatch.setenv(name, value)
        return waited

    return of


def test_rank_0_tells_an_error_of_all_and_the_others_wait_for_it(process):
    waited = process("0")
    with pytest.raises(ConfigError), told_once():
        raise ConfigError("wrong")
    assert waited == []
    waited = process("1")
    with pytest.raises(SystemExit) as end, told_once():
        raise ConfigError("wrong")
    assert end.value.code == 2
    assert len(waited) == 1
    with pytest.raises(SystemExit) as end, told_once():
        raise ConfigError("gone", of_machine=True)
    assert end.value.code == 4


def test_an_error_of_another_machine_is_told_by_its_first_rank_if_rank_0_has_not_ended_the_job(process, monkeypatch):
    waited = process("4")
    monkeypatch.setenv("MPI_LOCALRANKID", "0")
    told = rf"rank 4 on {re.escape(socket.gethostname())}: conf/large\.yaml: no such file"
    with pytest.raises(RankError, match=told), told_once():
        raise ConfigError("conf/large.yaml: no such file")
    assert len(waited) == 1


def test_an_error_of_one_rank_is_told_by_it(process):
    process("1")
    with pytest.raises(RankError), told_once():
        raise RankError("rank 1: gone")


def test_the_variables_stand_in_the_environment(process):
    process("1")
    with told_once() as variables:
        assert variables["RANK"] == launchers.os.environ["RANK"] == "1"

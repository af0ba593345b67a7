"""The script for Slurm under Slurm itself, over hosts of their own: warned, cancelled, queued again, a node lost."""

import re
import sys

import pytest

from megatron_glm.training.control.stopping import read_end
from tests.endtoend import hosts, slurm_cluster
from tests.endtoend.corpus import make_corpus
from tests.endtoend.undisturbed import has_made, losses, undisturbed_losses

SCRIPT = hosts.REPOSITORY / "launch_scripts" / "slurm.sbatch"
STEPS = 10
SECONDS_TO_END = 240  # on a machine where other tests run

_LACKS = hosts.lacks() or slurm_cluster.lacks()
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.skipif(bool(_LACKS), reason=_LACKS)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), steps=STEPS, eval_interval=STEPS, eval_samples=2)


@pytest.fixture(scope="module")
def expected(corpus):
    return undisturbed_losses(corpus)


@pytest.fixture
def network(tmp_path):
    with hosts.network(["head", "node1", "node2", "node3"], tmp_path / "hosts") as one:
        yield one


@pytest.fixture
def slurm(network, tmp_path):
    return slurm_cluster.Slurm(network, tmp_path / "slurm", environment=hosts.clean_environment())


@pytest.fixture
def submit(slurm, corpus, tmp_path):
    """Submits the script, for two processes on so many nodes; some lines of it are set as a user would."""

    def run(*options, nodes=2, settings=(), fault=""):
        each = 2 // nodes
        lines = [f"--nodes={nodes}", f"--ntasks-per-node={each}", f"--gpus-per-node={each}", "--cpus-per-task=1",
                 f"--output={tmp_path}/%x-%j.log", *options]  # fmt: skip
        run_arguments = [corpus.config, f"train.output={tmp_path / 'run'}", "checkpoint.save_interval=2", *settings]
        return slurm.sbatch(*lines, SCRIPT, *run_arguments, environment={"GLM_FAULT": fault} if fault else {})

    return run


@pytest.mark.parametrize("nodes", [1, 2])
def test_two_tasks_train_as_two_processes_do(submit, expected, tmp_path, nodes):
    job = submit(nodes=nodes)
    assert job.wait(SECONDS_TO_END) == "COMPLETED", job.log()
    assert job.show()["ExitCode"] == "0:0"
    assert losses(tmp_path / "run") == expected


def test_a_job_is_warned_of_its_end_saves_and_goes_on_by_the_same_command(submit, expected, tmp_path):
    job = submit("--time=1", "--signal=B:USR1@40", fault="forward:rank=0:step=4:slow:seconds=3")
    assert job.wait(SECONDS_TO_END) == "COMPLETED", job.log()
    end = read_end(tmp_path / "run")
    assert (end.finished, end.reason) == (False, f"the file {tmp_path / 'run' / 'stop'}")
    assert "SIGUSR1: no rank runs on this machine; made" in job.log()
    again = submit()
    assert again.wait(SECONDS_TO_END) == "COMPLETED", again.log()
    assert read_end(tmp_path / "run").finished
    assert losses(tmp_path / "run") == expected


def test_a_task_that_dies_ends_its_step_and_the_job_starts_another(submit, expected, tmp_path):
    job = submit(fault="forward:rank=1:step=6:kill")
    assert job.wait(SECONDS_TO_END) == "COMPLETED", job.log()
    assert "srun: error: node2: task 1: Killed" in job.log()
    assert re.search("the launcher ended with 137; start 2 in 5 s, from .*step_0000000[2-6]; 1 of 5", job.log())
    assert losses(tmp_path / "run") == expected


def test_a_job_that_is_cancelled_leaves_nothing_and_the_same_command_goes_on(slurm, submit, expected, tmp_path):
    job = submit(fault="forward:rank=0:step=6:slow:seconds=1")
    hosts.until(has_made(tmp_path / "run", 5), job.log, SECONDS_TO_END)
    slurm.run("scancel", job.number)
    assert job.wait(SECONDS_TO_END) == "CANCELLED"
    assert read_end(tmp_path / "run").reason.startswith("SIGTERM to rank ")  # within Slurm's KillWait: it has saved
    hosts.until(lambda: not any(map(slurm.tasks_of, slurm.nodes)), job.log)
    again = submit()
    assert again.wait(SECONDS_TO_END) == "COMPLETED", again.log()
    assert losses(tmp_path / "run") == expected


def test_a_job_that_is_queued_again_while_it_runs_goes_on_from_its_newest_checkpoint(slurm, submit, expected, tmp_path):
    job = submit(fault="forward:rank=0:step=6:slow:seconds=0.5")
    hosts.until(has_made(tmp_path / "run", 5), job.log, SECONDS_TO_END)
    slurm.run("scontrol", "requeue", job.number)
    assert job.wait(SECONDS_TO_END) == "COMPLETED", job.log()
    assert job.show()["Restarts"] == "1"
    assert losses(tmp_path / "run") == expected


@pytest.mark.parametrize("place", [0, 1])
def test_a_job_whose_node_dies_goes_on_with_another(slurm, network, submit, expected, tmp_path, place):
    """That of the batch script, or the other one; its cable is pulled first, so that no word of its end gets out."""
    job = submit(fault="forward:rank=0:step=6:slow:seconds=0.5:start=0")
    hosts.until(has_made(tmp_path / "run", 5), job.log, SECONDS_TO_END)
    lost = network.hosts[f"node{1 + place}"]
    network.cut(lost)
    lost.kill()
    assert job.wait(SECONDS_TO_END) == "COMPLETED", job.log()
    assert job.show()["Restarts"] == "1"
    assert losses(tmp_path / "run") == expected


def test_srun_starts_preprocessing_over_nodes_where_its_pmi_is_that_of_the_mpi(slurm, corpus, tmp_path):
    pytest.importorskip("mpi4py")
    command = [sys.executable, "-m", "mpi4py.futures", "-m", "data_tools.preprocess", "--held-out", "0.1"]
    command += [
        "--input",
        corpus.root / "text.txt",
        "--tokenizer",
        corpus.root / "tokenizer",
        "--output",
        tmp_path / "two",
    ]
    told = slurm.run("srun", "--mpi=none", "--nodes=2", "--ntasks=3", *command, code=2)
    assert "error: 3 processes were started, but each is alone for mpi4py: its MPI is " in told
    assert "start them by srun --mpi=pmi2 (`srun --mpi=list` names the others), or by the mpiexec of that one" in told
    slurm.run("srun", "--mpi=pmi2", "--nodes=2", "--ntasks=3", *command)
    for split in ("train", "held_out"):
        for path in (corpus.root / "data" / split).iterdir():
            assert (tmp_path / "two" / split / path.name).read_bytes() == path.read_bytes()

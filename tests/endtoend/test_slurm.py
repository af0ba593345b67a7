"""The script for Slurm, as it is, under a stand-in for Slurm: warned, cut off, queued again, with a task that dies."""

import os
import sys
import time
from pathlib import Path

import pytest

from megatron_glm.training.control.stopping import STOP_FILE, read_end
from megatron_glm.training.launchers import free_port
from tests.endtoend.corpus import make_corpus
from tests.endtoend.slurm_stand_in import Slurm
from tests.endtoend.undisturbed import has_made, losses, undisturbed_losses

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "launch_scripts" / "slurm.sbatch"
STEPS = 10
SECONDS_TO_END = 240  # on a machine where other tests run
FIRST_PORT = 20_000  # of the script, which adds the last four digits of the job's number

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), steps=STEPS, eval_interval=STEPS, eval_samples=2)


@pytest.fixture(scope="module")
def expected(corpus):
    return undisturbed_losses(corpus)


@pytest.fixture
def slurm(tmp_path):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "SLURM_"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        variables.pop(name, None)
    search = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'kernels'}"
    variables |= {"PYTHONPATH": search, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "",
                  "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # fmt: skip
    directory = tmp_path / "slurm"
    directory.mkdir()
    one = Slurm(directory, submitted_from=REPOSITORY, environment=variables)
    yield one
    one.close()


@pytest.fixture
def start(slurm, corpus, tmp_path):
    """Starts the job, or starts it again; it is gone when the test is over."""
    port = next(port for port in iter(free_port, None) if port < FIRST_PORT + 10_000)
    number, jobs = 30_000 + port - FIRST_PORT, []

    def run(*settings, fault=""):
        arguments = [corpus.config, f"train.output={tmp_path / 'run'}", *settings]
        variables = {"SLURM_EXPORT_ENV": "NONE"} | ({"GLM_FAULT": fault} if fault else {})
        jobs.append(slurm.sbatch(SCRIPT, arguments, number=number, restarts=len(jobs), **variables))
        return jobs[-1]

    yield run
    for job in jobs:
        job.kill()


def until(seen, job):
    """Wait until something is seen of a job that still runs."""
    deadline = time.monotonic() + SECONDS_TO_END
    while not seen():
        assert job.process.poll() is None, job.log.read_text()
        assert time.monotonic() < deadline, job.log.read_text()
        time.sleep(0.05)


@pytest.mark.slow
def test_a_job_that_is_warned_saves_and_goes_on_when_it_is_queued_again(slurm, start, expected, tmp_path):
    output = tmp_path / "run"
    job = start(fault="forward:rank=0:step=4:slow:seconds=0.3")
    until(has_made(output, 3), job)
    job.warn()
    assert job.finish(SECONDS_TO_END) == 0, job.log.read_text()
    end = read_end(output)
    assert (end.finished, end.reason) == (False, f"the file {output / STOP_FILE}")
    assert 3 <= end.step < STEPS
    assert "SIGUSR1: no rank runs on this machine; made" in job.log.read_text()
    again = start()
    assert again.finish(SECONDS_TO_END) == 0, again.log.read_text()
    assert read_end(output).finished
    assert losses(output) == expected
    assert [options[0] for options in slurm.sruns] == ["--kill-on-bad-exit=1"] * 2


@pytest.mark.slow
def test_a_job_whose_time_is_over_goes_on_from_its_newest_checkpoint(start, expected, tmp_path):
    """srun, ranks and supervisor are told at once; the stop file that one of them makes is not for the next job."""
    output = tmp_path / "run"
    job = start("checkpoint.save_interval=2", fault="forward:rank=0:step=6:slow:seconds=0.3")
    until(has_made(output, 5), job)
    job.end_of_time(kill_wait=10.0)
    again = start("checkpoint.save_interval=2")
    assert again.finish(SECONDS_TO_END) == 0, again.log.read_text()
    assert read_end(output).finished
    assert losses(output) == expected


@pytest.mark.slow
def test_a_warning_that_came_too_late_does_not_stop_the_next_job(start, expected, tmp_path):
    output = tmp_path / "run"
    job = start(fault="forward:rank=0:step=2:slow:seconds=60")
    until(has_made(output, 1), job)
    job.warn()
    until((output / STOP_FILE).exists, job)
    job.kill()
    again = start()
    assert again.finish(SECONDS_TO_END) == 0, again.log.read_text()
    assert read_end(output).finished
    assert losses(output) == expected
    assert f"{output / STOP_FILE}: removed" in again.log.read_text()


@pytest.mark.slow
def test_a_task_that_dies_ends_its_step_and_the_job_starts_another(slurm, start, expected, tmp_path):
    output = tmp_path / "run"
    job = start("checkpoint.save_interval=2", fault="forward:rank=1:step=6:kill")
    assert job.finish(SECONDS_TO_END) == 0, job.log.read_text()
    assert losses(output) == expected
    assert len(slurm.sruns) == 2
    assert "the launcher ended with 137; start 2 in 5 s, from" in job.log.read_text()

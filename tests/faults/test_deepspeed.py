"""The same through `deepspeed` itself, whose launcher dies of SIGTERM, leaves its ranks and tells wrong codes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.process_tree import is_alive
from launch_scripts.supervise.process_tree import descendants, ranks_below
from megatron_glm.training.control.stopping import read_end
from megatron_glm.training.launchers import free_port
from tests.faults.conftest import hashes, newest, records

pytestmark = [pytest.mark.faults, pytest.mark.distributed]

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SECONDS = 240  # on a machine where other tests run
SLOW = "forward:rank=0:step=2:start={start}:slow:seconds=0.4"  # so that a test can act between steps


class Started:
    """A command that runs, and what is below it."""

    def __init__(self, command, environment, log):
        self.log = log
        with open(log, "w") as stream:
            self.process = subprocess.Popen(
                command, env=environment, cwd=REPOSITORY, stdout=stream, stderr=stream, start_new_session=True
            )
        self.seen: set[int] = set()

    def until(self, condition):
        deadline = time.monotonic() + SECONDS
        while not condition():
            self.seen |= set(descendants(self.process.pid))
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def finish(self):
        self.until(lambda: self.process.poll() is not None)
        return self.process.returncode

    def left(self):
        return [pid for pid in self.seen if is_alive(pid)]


@pytest.fixture
def start(runs, tmp_path):
    """Starts two ranks by `deepspeed`; below a supervisor if its options are given."""
    begun = []

    def go(output, faults="", supervised=None, overrides=()):
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "SLURM_"))}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            variables.pop(name, None)
        variables |= {
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'kernels'}",
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "CUDA_VISIBLE_DEVICES": "",
            "GLM_FAULT": faults,
        }
        launch = [BIN / "deepspeed", "--num_accelerators", "2", "--master_port", free_port(), "pretrain_glm.py"]
        settings = ["--config", runs.config, f"train.output={output}", "checkpoint.save_interval=4", *overrides]
        supervisor = [] if supervised is None else [sys.executable, "-m", "launch_scripts.supervise", *supervised, "--"]
        begun.append(Started([str(part) for part in [*supervisor, *launch, *settings]], variables, tmp_path / "log"))
        return begun[-1]

    yield go
    for one in begun:
        for pid in [*one.left(), *([one.process.pid] if one.process.poll() is None else [])]:
            os.kill(pid, signal.SIGKILL)
        one.process.wait()


def step_of(output):
    file = output / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return max((json.loads(line)["step"] for line in lines), default=0)


def test_sigterm_to_the_launcher_saves_and_ends_all_of_them(runs, undisturbed, start, tmp_path):
    """It dies at once; its ranks see that, finish their step, save and end."""
    output = tmp_path / "run"
    job = start(output, SLOW.format(start=0))
    job.until(lambda: step_of(output) >= 3)
    job.process.send_signal(signal.SIGTERM)
    assert job.finish() == -signal.SIGTERM
    job.until(lambda: not job.left())
    (stop,) = records(output, "stop")
    assert stop["reason"] == "its launcher has ended"
    assert newest(output).step == stop["step"]
    runs.train(output)
    assert hashes(output) == undisturbed


@pytest.mark.slow
def test_a_supervised_run_outlives_a_killed_rank_and_a_killed_launcher_and_stops_by_wish(
    runs, undisturbed, start, tmp_path
):
    output = tmp_path / "run"
    faults = ",".join(["backward:rank=1:step=6:kill", SLOW.format(start=1), SLOW.format(start=2)])
    job = start(output, faults, supervised=["--backoff", "0.1"])
    # First start: rank 1 is killed in step 6. Second: its launcher is, after step 6.
    job.until(lambda: len(_starts(output)) == 2 and step_of(output) >= 6)
    (node_launcher,) = {_parent(rank) for rank in ranks_below(job.process.pid)}
    os.kill(node_launcher, signal.SIGKILL)
    job.until(lambda: len(_starts(output)) == 3 and step_of(output) >= 9)
    job.process.send_signal(signal.SIGUSR1)
    assert job.finish() == 0
    assert job.left() == []
    assert read_end(output).reason.startswith("SIGUSR1 to rank ")
    assert newest(output).step == read_end(output).step
    assert [start["step"] for start in _starts(output)][:2] == [0, 4]
    runs.train(output)
    assert hashes(output) == undisturbed


@pytest.mark.slow
def test_a_supervised_run_outlives_a_flipped_bit_and_a_disk_that_fails_but_no_mistake(
    runs, undisturbed, start, tmp_path
):
    output = tmp_path / "run"
    faults = "optimizer:rank=1:step=6:flip,data:rank=0:step=6:start=1:unreadable"
    job = start(output, faults, supervised=["--backoff", "0.1"], overrides=["train.replica_check_interval=1"])
    assert job.finish() == 0, job.log.read_text()
    log = job.log.read_text()
    assert "error: step 6: parameter " in log
    assert re.search(r"error: rank 0: .*: cannot be read at byte \d+: Input/output error", log)
    assert len(re.findall("supervise: the launcher ended with 4; start . in ", log)) == 2
    assert [start["step"] for start in _starts(output)] == [0, 4, 4]
    assert hashes(output) == undisturbed
    mistaken = start(output, supervised=["--backoff", "0.1"], overrides=["train.seed=7"])
    assert mistaken.finish() == 2
    assert "not started again: it cannot go on as it is" in mistaken.log.read_text()


@pytest.mark.slow
def test_a_killed_supervisor_leaves_nothing_running_and_a_checkpoint(runs, start, tmp_path):
    output = tmp_path / "run"
    job = start(output, SLOW.format(start=0), supervised=[])
    job.until(lambda: step_of(output) >= 3)
    job.process.kill()
    job.finish()
    job.until(lambda: not job.left())
    assert newest(output).step == records(output, "stop")[0]["step"]


@pytest.mark.slow
def test_a_second_signal_stops_at_once(runs, start, tmp_path):
    output = tmp_path / "run"
    job = start(output, "forward:rank=1:step=3:hang", supervised=[])
    job.until(lambda: step_of(output) >= 2)
    job.process.send_signal(signal.SIGTERM)
    time.sleep(6)
    job.process.send_signal(signal.SIGTERM)
    assert job.finish() == 143
    assert job.left() == []


def _starts(output):
    return records(output, "start") if (output / "metrics.jsonl").exists() else []


def _parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

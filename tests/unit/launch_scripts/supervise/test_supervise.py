"""The supervisor over a launcher that behaves as badly as DeepSpeed's: signals, restarts, codes, no orphans."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from benchmarks.process_tree import is_alive
from launch_scripts.supervise.__main__ import build_parser
from megatron_glm.locking import exclusive
from megatron_glm.training.output import LOCK_FILE

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[3]
STAND_IN = HERE / "stand_in.py"


@pytest.fixture
def config(tmp_path):
    tree = {
        "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1},
        "tokenizer": {"path": "-"},
        "data": {"sources": [{"path": "-"}]},
        "optimizer": {"learning_rate": 1},
        "train": {"output": "elsewhere", "steps": 9, "global_batch_size": 1, "micro_batch_size": 1},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


class Supervised:
    """A supervisor that has been started."""

    def __init__(self, output, process):
        self.output, self.process = output, process

    def notes(self):
        file = self.output / "notes"
        return file.read_text().splitlines() if file.exists() else []

    def ranks(self, number=2):
        """Ids of the ranks of the newest start and of their workers, once all have started."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            last = "\n".join(self.notes()).rpartition("start ")[2]
            found = re.findall(r"rank \d (\d+) (\d+)", last)
            if len(found) >= number:
                return [[int(pid) for pid in pids] for pids in found]
            time.sleep(0.02)
        raise AssertionError(f"no ranks: {self.notes()}")

    def finish(self, seconds=30):
        _, errors = self.process.communicate(timeout=seconds)
        return self.process.returncode, errors

    def alive(self):
        """Processes of the run that are left."""
        pids = [int(pid) for pids in re.findall(r"rank \d (\d+) (\d+)", "\n".join(self.notes())) for pid in pids]
        return [pid for pid in pids if is_alive(pid)]


@pytest.fixture
def supervise(tmp_path, config):
    """Starts one over a launcher of this behaviour."""
    output, started = tmp_path / "run", []
    output.mkdir()

    def start(behaviour, *options, output_setting=True):
        command = [sys.executable, STAND_IN, "launcher", behaviour, "--config", config]
        if output_setting:
            command.append(f"train.output={output}")
        search = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'kernels'}"
        process = subprocess.Popen(
            [sys.executable, "-m", "launch_scripts.supervise", "--backoff", "0.1", *options, "--", *map(str, command)],
            env=os.environ | {"PYTHONPATH": search, "STAND_IN_OUTPUT": str(output)},
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        started.append(Supervised(output, process))
        return started[-1]

    yield start
    for one in started:
        for pid in [*one.alive(), *([one.process.pid] if one.process.poll() is None else [])]:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_the_ranks_and_neither_launcher_nor_workers(supervise, number):
    run = supervise("waits")
    run.ranks()
    run.process.send_signal(number)
    code, errors = run.finish()
    assert code == 0
    told = sorted(line for line in run.notes() if "told" in line)
    assert told == [f"rank {rank} was told {number.name}" for rank in (0, 1)]
    assert f"supervise: {number.name}: handed on to 2 ranks; they have 300 s (--grace) to finish" in errors
    assert "supervise: the launcher ended with 0; not started again: it stopped at step 1: a signal\n" in errors
    assert run.alive() == []


def test_where_no_rank_runs_on_this_machine_the_stop_file_is_made(supervise):
    run = supervise("no ranks")
    while not run.notes():
        time.sleep(0.02)
    run.process.send_signal(signal.SIGTERM)
    code, errors = run.finish()
    assert code == 0
    assert f"SIGTERM: no rank runs on this machine; made {run.output / 'stop'} for those on others" in errors
    assert (run.output / "stop").read_text() == "launch_scripts.supervise: SIGTERM\n"


@pytest.mark.parametrize("text", ["launch_scripts.supervise: SIGUSR1\n", ""])
def test_a_stop_file_that_an_earlier_supervisor_left_is_removed_and_a_person_s_stays(supervise, tmp_path, text):
    """One whose job's time was over before a rank could obey it would stop the next job too."""
    stop = tmp_path / "run" / "stop"
    stop.write_text(text)
    _, errors = supervise("fails twice", "--restarts", "0").finish()
    assert stop.exists() == (text == "")
    assert (f"supervise: {stop}: removed; an earlier supervisor had made it" in errors) == (text != "")


def test_a_run_that_fails_is_started_again_until_it_ends_well(supervise):
    run = supervise("fails twice")
    code, errors = run.finish()
    assert code == 0
    assert [line.split()[1] for line in run.notes() if line.startswith("start")] == ["0", "1", "2"]
    assert "start 2 in 0.1 s, from the beginning; 1 of 5 without a newer checkpoint" in errors
    assert "start 3 in 0.2 s" in errors


def test_a_restart_waits_for_ranks_on_other_machines_that_still_write(supervise, tmp_path):
    with exclusive(tmp_path / "run" / LOCK_FILE):
        run = supervise("fails twice")
        run.ranks()
        time.sleep(1)  # ten times the pause before a start
        assert sum("start" in note for note in run.notes()) == 1
    code, errors = run.finish()
    assert code == 0
    assert f"supervise: waiting 300 s (--grace) at most for the end of process {os.getpid()} on " in errors


def test_a_restart_waits_for_them_no_longer_than_the_grace(supervise, tmp_path):
    with exclusive(tmp_path / "run" / LOCK_FILE):
        code, _ = supervise("fails twice", "--grace", "0.2").finish()
    assert code == 0


def test_restarts_are_limited(supervise):
    code, errors = supervise("fails twice", "--restarts", "1").finish()
    assert code == 1
    assert errors.count("start 2 in") == 1
    assert "start 3 in" not in errors
    assert "not started again: 2 starts in a row have led to no newer checkpoint (--restarts 1)" in errors
    assert "; newest checkpoint: none; exit code 1\n" in errors


def test_a_signal_between_two_starts_ends_it(supervise):
    run = supervise("fails twice", "--backoff", "60")
    while "start 2 in 60 s" not in run.process.stderr.readline():
        assert run.process.poll() is None
    run.process.send_signal(signal.SIGTERM)
    code, errors = run.finish()
    assert code == 143
    assert errors == "supervise: SIGTERM in the pause; not started again\n"


def test_a_run_that_has_lost_its_checkpoints_is_not_begun_anew(supervise):
    """A file system that is not mounted must not turn into a run from scratch."""
    run = supervise("loses its checkpoint")
    code, errors = run.finish()
    assert code == 2
    starts = [line.split(maxsplit=2)[1:] for line in run.notes()]
    assert starts[0][1].startswith("--config") or "train.output=" in starts[0][1]
    assert starts[1:] == [["1", "--resume must"], ["2", "--resume must"]]
    newest = run.output / "checkpoints" / "step_00000004"
    assert f"start 3 in 0.2 s, from {newest}; 2 of 5 without a newer checkpoint" in errors
    assert "not started again: it cannot go on as it is" in errors


def test_a_killed_launcher_leaves_no_orphans_and_is_started_again(supervise):
    run = supervise("waits", "--restarts", "1")
    ranks = run.ranks()
    launcher = int(Path(f"/proc/{ranks[0][0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(launcher, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while len([line for line in run.notes() if line.startswith("start")]) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(is_alive(pid) for pids in ranks for pid in pids)
    run.ranks()
    run.process.send_signal(signal.SIGTERM)
    assert run.finish()[0] == 0
    assert run.alive() == []


def test_ranks_that_do_not_end_are_killed_after_the_grace(supervise):
    run = supervise("hangs", "--grace", "0.5")
    run.ranks()
    run.process.send_signal(signal.SIGTERM)
    code, errors = run.finish()
    assert code == 143
    assert "not ended after 0.5 s (--grace): killing all processes of the run" in errors
    assert run.alive() == []


def test_a_killed_supervisor_leaves_no_orphans(supervise):
    run = supervise("waits")
    run.ranks()
    run.process.kill()
    run.process.wait()
    deadline = time.monotonic() + 30
    while run.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert run.alive() == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["deepspeed", "pretrain_glm.py"], "COMMAND: names no --config"),
        (["deepspeed", "pretrain_glm.py", "--config", "none.yaml"], "none.yaml: no such configuration file"),
        (["no-launcher", "--config", "CONFIG"], "COMMAND: 'no-launcher' cannot be started (No such file or directory)"),
    ],
)
def test_a_command_that_cannot_be_is_refused(config, tmp_path, command, message):
    command = [str(config) if part == "CONFIG" else part for part in command] + [f"train.output={tmp_path}"]
    search = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'kernels'}"
    done = subprocess.run(
        [sys.executable, "-m", "launch_scripts.supervise", "--", *command],
        env=os.environ | {"PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}")


@pytest.mark.parametrize("option", [("--restarts", "-1"), ("--backoff", "-2"), ("--grace", "nan"), ("--grace", "soon")])
def test_an_option_that_cannot_be_is_refused(option, capsys):
    with pytest.raises(SystemExit) as end:
        build_parser().parse_args([f"{option[0]}={option[1]}", "--", "deepspeed"])
    assert end.value.code == 2
    assert option[0] in capsys.readouterr().err

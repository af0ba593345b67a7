"""A process that is killed, hangs or is slow: what the others do, and what the next start makes of it."""

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from megatron_glm.training.control.stopping import read_end
from tests.distributed.ranks import run_ranks
from tests.faults import cases
from tests.faults.conftest import hashes, newest, records

pytestmark = [pytest.mark.faults, pytest.mark.distributed]

# The fault, and the checkpoint that the next start finds.
KILLS = {
    "data": ("data:rank=1:step=7:kill", 4),
    "forward": ("forward:rank=0:step=7:kill", 4),
    "backward": ("backward:rank=1:step=7:kill", 4),
    "optimizer": ("optimizer:rank=1:step=7:kill", 4),
    "save": ("save:rank=1:step=8:kill", 4),
    "evaluation": ("evaluation:rank=0:step=8:kill", 4),
}
QUICK = {"save"}


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=[] if phase in QUICK else [pytest.mark.slow]) for phase in KILLS]
)
def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint_and_nothing_else(runs, undisturbed, tmp_path, phase):
    faults, step = KILLS[phase]
    output = tmp_path / "run"
    with pytest.raises(AssertionError, match=r"rank \d ended with -9|rank \d failed"):
        # In the background a save may still be under way three steps later.
        runs.train(output, faults, ["checkpoint.background=false"])
    assert newest(output).step == step
    assert read_end(output) is None
    runs.train(output)
    assert hashes(output) == undisturbed


@pytest.mark.slow
def test_a_killed_data_worker_is_replaced_and_costs_nothing(runs, undisturbed, tmp_path):
    output = tmp_path / "run"
    runs.train(output, "worker:rank=1:step=7:kill", ["data.workers=2"])
    assert hashes(output) == undisturbed


@pytest.mark.slow
def test_a_console_that_nobody_reads_any_more_costs_nothing(runs, undisturbed, tmp_path):
    output = tmp_path / "run"
    settings = [f"train.output={output}", "checkpoint.save_interval=4", "data.workers=1"]
    run_ranks(2, cases.train_unread, str(runs.config), *settings)
    assert hashes(output) == undisturbed
    assert len(records(output, "train")) == 12


@pytest.mark.slow
def test_an_error_of_one_rank_ends_the_run_and_the_next_start_goes_on(runs, undisturbed, tmp_path):
    output = tmp_path / "run"
    with pytest.raises(AssertionError, match=r"PlantedError: GLM_FAULT: raised in forward|Connection closed by peer"):
        runs.train(output, "forward:rank=1:step=7:raise")
    runs.train(output)
    assert hashes(output) == undisturbed


@pytest.mark.parametrize("faults", ["forward:rank=1:step=3:hang"])
def test_ranks_that_hang_write_their_stacks_and_end(runs, tmp_path, faults):
    output = tmp_path / "run"
    with pytest.raises(AssertionError, match=r"rank \d ended with 3"):
        runs.train(output, faults, ["train.watchdog_seconds=2"])
    texts = [(output / "stacks" / f"rank_{rank}.txt").read_text() for rank in (0, 1)]
    assert all(f"rank {rank} on " in text for rank, text in enumerate(texts))
    assert all("no progress for 2 s, in step 3, forward and backward" in text for text in texts)
    assert "fault_points.py" in texts[1]
    assert "fault_points.py" not in texts[0]
    assert "torch/distributed" in texts[0] or "deepspeed" in texts[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "doing"),
    [
        ("evaluation:rank=0:step=4:hang", "the validation at step 4"),
        ("worker:rank=1:step=3:hang", "step 4, data"),  # the third is there already
    ],
)
def test_a_hang_is_found_in_every_phase(runs, tmp_path, faults, doing):
    output = tmp_path / "run"
    with pytest.raises(AssertionError, match=r"rank \d ended with 3"):
        runs.train(output, faults, ["train.watchdog_seconds=2", "data.workers=1", "data.prefetch=1"])
    assert doing in (output / "stacks" / f"rank_{faults.split(':')[1][-1]}.txt").read_text()


@pytest.mark.slow
def test_a_long_validation_and_a_long_save_are_no_hang(runs, tmp_path):
    output = tmp_path / "run"
    faults = "evaluation:rank=1:step=1:slow:seconds=0.3,save:rank=1:step=4:slow:seconds=4"
    runs.train(output, faults, ["train.watchdog_seconds=2", "train.eval_samples=32"])
    assert sum(record["seconds"] for record in records(output, "validation")) > 2
    assert not (output / "stacks").exists()


@pytest.mark.slow
def test_a_slow_rank_is_named(runs, tmp_path):
    output = tmp_path / "run"
    runs.train(output, "forward:rank=1:step=2:slow:seconds=0.4", ["train.log_interval=4"])
    found = records(output, "straggler")
    assert found
    assert {record["rank"] for record in found} == {1}
    assert found[-1]["busy_seconds_per_step"] > 0.4


@pytest.mark.slow
def test_an_output_that_vanishes_stops_the_run_which_saves_itself(runs, undisturbed, tmp_path):
    output = tmp_path / "run"

    def remove():
        while not output.exists() or "step_00000004" not in [path.name for path in output.glob("checkpoints/*")]:
            time.sleep(0.01)
        output.rename(tmp_path / "gone")

    remover = threading.Thread(target=remove, daemon=True)
    remover.start()
    with pytest.raises(AssertionError, match=r"was removed under the run; its state at step \d+ is saved in a new one"):
        runs.train(output, "forward:rank=0:step=5:slow:seconds=0.3")
    remover.join()
    assert newest(output).step >= 4
    runs.train(output)
    assert hashes(output) == undisturbed


@pytest.mark.slow
def test_an_output_that_cannot_be_written_is_one_line_of_all_ranks(runs):
    with pytest.raises(AssertionError, match=r"train\.output: '/proc/run' cannot be written"):
        runs.train(Path("/proc/run"))


@pytest.mark.slow
def test_a_second_job_is_refused_and_does_not_disturb_the_first(runs, undisturbed, tmp_path):
    output, refusals = tmp_path / "run", []

    def second():
        while not (output / "metrics.jsonl").exists():
            time.sleep(0.01)
        with pytest.raises(AssertionError, match="another run is writing to"):
            runs.train(output)
        refusals.append(True)

    other = threading.Thread(target=second)
    other.start()
    runs.train(output, "forward:rank=0:step=2:slow:seconds=0.5")
    other.join()
    assert refusals == [True]
    assert hashes(output) == undisturbed


@pytest.mark.slow
def test_data_that_change_under_a_run_are_an_error_that_names_the_file(runs, tmp_path):
    corpus = tmp_path / "corpus"
    shutil.copytree(runs.config.parent / "data", corpus)
    (tokens,) = (corpus / "train").glob("*.bin")
    output = tmp_path / "run"
    source = f"data.sources=[{{path: {corpus}}}]"
    runs.train(output, overrides=[source, "train.exit_after_steps=4"])
    _truncate(tokens)
    with pytest.raises(AssertionError, match=tokens.name):
        runs.train(output, overrides=[source])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_data_that_are_cut_in_mid_run_end_it_with_a_line_that_names_the_file(runs, tmp_path, workers):
    """A map of the file would end the process by SIGBUS, without a word."""
    corpus, output = tmp_path / "corpus", tmp_path / "run"
    shutil.copytree(runs.config.parent / "data", corpus)
    (file,) = (corpus / "train").glob("*.bin")
    settings = [f"data.sources=[{{path: {corpus}}}]", f"data.workers={workers}", "train.steps=60"]
    done = _after_step(output, 4, lambda: os.truncate(file, 64))
    with pytest.raises(AssertionError, match=rf"RankError: rank \d: .*{file.name}: ends at byte 64, but had"):
        runs.train(output, "forward:rank=0:step=5:slow:seconds=0.2", settings)
    assert done.wait(1)
    assert newest(output).step >= 4
    assert read_end(output) is None


@pytest.mark.slow
def test_data_that_are_replaced_in_mid_run_are_those_that_were_opened(runs, undisturbed, tmp_path):
    corpus, output = tmp_path / "corpus", tmp_path / "run"
    shutil.copytree(runs.config.parent / "data", corpus)
    done = _after_step(output, 4, lambda: shutil.rmtree(corpus))
    runs.train(output, "forward:rank=0:step=5:slow:seconds=0.2", [f"data.sources=[{{path: {corpus}}}]"])
    assert done.wait(1)
    assert hashes(output) == undisturbed


def _after_step(output: Path, step: int, act) -> threading.Event:
    """Does something once a run has saved a step; the event tells when it is done."""
    done = threading.Event()

    def wait():
        while not (output / "checkpoints" / f"step_{step:08d}").exists():
            time.sleep(0.01)
        act()
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    return done


def _truncate(file: Path) -> None:
    with open(file, "r+b") as stream:
        stream.truncate(file.stat().st_size // 2)

"""A run that is asked to stop finishes its step, saves, ends well, and goes on as if nothing had been."""

import pytest

from megatron_glm.training.control.stopping import STOP_FILE, read_end
from tests.faults.conftest import STEPS, hashes, newest, records

pytestmark = [pytest.mark.faults, pytest.mark.distributed]

# The fault, the step that is saved: a step that has begun is finished.
AT = {
    "data": ("data:rank=1:step=6:signal=SIGTERM", 5),
    "forward": ("forward:rank=1:step=6:signal=SIGUSR1", 6),
    "backward": ("backward:rank=0:step=6:signal=SIGINT", 6),
    "optimizer": ("optimizer:rank=1:step=6:signal=SIGTERM", 6),
    "evaluation": ("evaluation:rank=1:step=8:signal=SIGTERM", 8),
    "save": ("save:rank=1:step=8:signal=SIGTERM", 8),
}
QUICK = {"evaluation"}


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=[] if phase in QUICK else [pytest.mark.slow]) for phase in AT]
)
def test_a_signal_to_any_rank_in_any_phase_stops_all_of_them(runs, undisturbed, tmp_path, phase):
    faults, step = AT[phase]
    output = tmp_path / "run"
    runs.train(output, faults)
    assert newest(output).step == step
    end = read_end(output)
    assert (end.step, end.finished) == (step, False)
    assert end.reason.startswith(faults.rpartition("=")[2] + " to rank ")
    assert records(output, "stop")[0]["reason"] == end.reason
    # The validation that was interrupted is made again, that of the step that was not is there.
    assert [r["step"] for r in records(output, "validation")] == list(range(4, step + (phase != "evaluation"), 4))
    runs.train(output)
    assert hashes(output) == undisturbed
    assert read_end(output).finished


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        ("parallel.tensor=2", "parallel.zero_stage=1"),
        ("parallel.pipeline=2", "parallel.zero_stage=1"),
        ("parallel.zero_stage=3",),
    ],
)
@pytest.mark.parametrize("phase", ["backward", "evaluation"])
def test_ranks_of_one_replica_agree_too(runs, tmp_path, layout, phase):
    faults, step = AT[phase]
    output = tmp_path / "run"
    runs.train(output, faults, layout)
    assert newest(output).step == step
    assert read_end(output).reason == records(output, "stop")[0]["reason"]


@pytest.mark.slow
def test_signals_to_all_ranks_at_once_are_one(runs, tmp_path):
    output = tmp_path / "run"
    faults = "forward:rank=0:step=6:signal=SIGINT,forward:rank=1:step=6:signal=SIGTERM"
    runs.train(output, faults)
    assert newest(output).step == 6


def test_a_stop_file_is_obeyed_once(runs, tmp_path):
    output = tmp_path / "run"
    output.mkdir()
    (output / STOP_FILE).touch()
    runs.train(output)
    assert read_end(output).reason == f"the file {output / STOP_FILE}"
    assert not (output / "checkpoints").exists() or not any((output / "checkpoints").iterdir())
    assert not (output / STOP_FILE).exists()


@pytest.mark.slow
def test_steps_and_minutes_of_a_start_end_it(runs, undisturbed, tmp_path):
    output = tmp_path / "run"
    for step in (5, 10):
        runs.train(output, overrides=["train.exit_after_steps=5"])
        assert newest(output).step == read_end(output).step == step
    runs.train(output, overrides=["train.exit_after_minutes=1e-4"])
    assert (newest(output).step, read_end(output).reason) == (10, "train.exit_after_minutes=0.0001")
    runs.train(output)
    assert hashes(output) == undisturbed


def test_an_override_is_adopted_by_all_ranks_kept_and_given_up(runs, tmp_path):
    output = tmp_path / "run"
    output.mkdir()
    (output / "overrides.yaml").write_text("learning_rate: 0.001\n")
    runs.train(output, overrides=["train.exit_after_steps=6"])
    (adopted,) = records(output, "override")
    assert (adopted["step"], adopted["learning_rate"]) == (0, 0.001)
    assert newest(output).state["steering"]["overrides"] == {"learning_rate": 0.001, "floor": None}
    assert records(output, "train")[4]["learning_rate"] == pytest.approx(0.001)  # the end of the warm-up
    (output / "overrides.yaml").unlink()
    runs.train(output)
    assert [r["learning_rate"] for r in records(output, "override")] == [0.001, None]
    rates = [r["learning_rate"] for r in records(output, "train")]
    assert rates[6] > 2 * rates[5]
    assert len(rates) == STEPS

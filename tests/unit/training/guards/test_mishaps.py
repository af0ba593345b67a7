"""What is done about each kind of bad step, under each policy."""

import json
import math

import numpy as np
import pytest

from megatron_glm.config.schema import Train
from megatron_glm.training.guards.divergence import DivergedError, RewindWished
from megatron_glm.training.guards.mishaps import Mishaps
from megatron_glm.training.guards.spikes import StepLoss
from megatron_glm.training.progress import Progress

SAMPLES = np.array([40, 41, 44, 45])  # 42 and 43 are left out


class Run:
    """Stands in for a trainer: steps, and what was recorded of them."""

    def __init__(self, saved=None, **settings):
        train = Train(output="-", steps=9, global_batch_size=4, micro_batch_size=4, **settings)
        self.records, self.asked, self.progress = [], [], Progress()
        self.mishaps = Mishaps(
            train, saved, progress=self.progress, record=self.records.append, documents=self._documents
        )

    def step(self, loss, norm=1.0, phase=0):
        """Whether the update was made."""
        made = StepLoss(loss, [loss * 8, 0.0, 0.0], [8, 0, 0], [1 / 8, 0.0, 0.0])
        forbidden = self.mishaps.forbids(made, phase=phase)
        self.progress.step += 1
        self.mishaps.settle(made, None if forbidden else norm, SAMPLES)
        return not forbidden

    def steps(self, number, loss=2.0, phase=0):
        for k in range(number):
            self.step(loss + 0.01 * (-1) ** k, phase=phase)

    def _documents(self, step, samples):
        self.asked.append((step, samples.tolist()))
        return f"culprits/step_{step:08d}.jsonl"


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_forbids_the_update_and_is_told_with_its_samples(loss):
    run = Run()
    assert run.step(2.0)
    assert not run.step(loss)
    (record,) = run.records
    assert (record["kind"], record["step"], record["in_a_row"]) == ("not_finite", 2, 1)
    assert record["ranges"] == [[40, 42], [44, 46]]
    assert record["documents"] == "culprits/step_00000002.jsonl"
    assert run.asked == [(2, [40, 41, 44, 45])]


def test_a_gradient_that_is_not_finite_is_told_too():
    run = Run()
    assert run.step(2.0, norm=math.nan)  # the engine itself leaves it out
    assert run.records[0]["kind"] == "not_finite"


def test_the_run_stops_after_as_many_in_a_row_as_it_has_patience_for():
    run = Run(nonfinite_patience=3)
    for _ in range(2):
        run.step(math.nan)
    run.step(2.0)  # they were not in a row
    for _ in range(2):
        run.step(math.nan)
    with pytest.raises(
        DivergedError, match=r"step 6: loss nan, .* samples 40 to 45, the last of 3 such steps in a row"
    ):
        run.step(math.nan)
    assert [record["in_a_row"] for record in run.records] == [1, 2, 1, 2, 3]


def test_an_overflow_of_fp16_neither_counts_nor_ends_a_row():
    run = Run(nonfinite_patience=2)
    run.step(math.nan)
    assert run.step(2.0, norm=None)
    with pytest.raises(DivergedError):
        run.step(math.nan)


@pytest.mark.parametrize(("policy", "makes_updates"), [("off", True), ("warn", True), ("skip", False)])
def test_a_spike_is_told_and_its_update_made_as_the_policy_says(policy, makes_updates):
    run = Run(spikes={"policy": policy, "window": 8})
    run.steps(8)
    assert run.step(9.0) == makes_updates
    if policy == "off":
        assert run.records == []
        return
    (record,) = run.records
    assert (record["kind"], record["policy"], record["loss"]) == ("spike", policy, 9.0)
    assert record["expected"] == pytest.approx(2.0, abs=0.02)
    assert record["ranges"] == [[40, 42], [44, 46]]


def test_a_rewind_leaves_out_the_samples_up_to_the_spike():
    run = Run(spikes={"policy": "rewind", "window": 8, "rewind_steps": 5})
    run.steps(8)
    with pytest.raises(RewindWished) as wish:
        run.step(9.0)
    assert (wish.value.end, wish.value.samples) == (46, 5 * len(SAMPLES))
    assert run.records[0]["policy"] == "rewind"


def test_a_run_rewinds_only_so_often_whatever_its_checkpoint_knew():
    run = Run(spikes={"policy": "rewind", "window": 8, "rewinds": 2})
    run.steps(8)
    checkpoint = run.mishaps.state()
    for _ in range(2):
        with pytest.raises(RewindWished):
            run.step(9.0)
        run.mishaps.go_back(checkpoint)
    with pytest.raises(DivergedError, match=r"after 2 rewinds \(train\.spikes\.rewinds\)"):
        run.step(9.0)


def test_a_spike_that_no_checkpoint_lies_before_is_no_rewind():
    run = Run(spikes={"policy": "rewind", "window": 8, "rewinds": 1})
    run.steps(8)
    for _ in range(4):
        with pytest.raises(RewindWished):
            run.step(9.0)
        run.steps(2)
    assert run.mishaps.state()["rewinds"] == 0


def test_spikes_in_a_row_stop_a_run_that_makes_no_updates_of_them():
    run = Run(spikes={"policy": "skip", "window": 8, "patience": 3})
    run.steps(8)
    run.step(9.0)
    run.step(9.0)
    with pytest.raises(DivergedError, match=r"loss 9\.000 where 2\.0.* the last of 3 such steps in a row"):
        run.step(9.0)


def test_a_run_that_only_warns_gets_used_to_a_new_level():
    run = Run(spikes={"policy": "warn", "window": 8, "patience": 1})
    run.steps(8)
    run.steps(20, loss=9.0)
    assert len(run.records) == 4  # until half of what is remembered is of the new level


def test_a_new_phase_begins_with_nothing_remembered():
    run = Run(spikes={"policy": "skip", "window": 8})
    run.steps(8)
    run.steps(8, loss=9.0, phase=1)
    assert run.records == []
    assert not run.step(20.0, phase=1)


@pytest.mark.parametrize("saved_after", [4, 8, 9])
def test_a_resumed_run_judges_as_one_that_never_stopped(saved_after):
    settings = {"spikes": {"policy": "skip", "window": 8}, "nonfinite_patience": 3}
    losses = [2.0, 2.01, 1.99, 2.02, math.nan, 2.0, 1.98, 2.01, math.nan, math.nan, 9.0, 2.0]
    whole = Run(**settings)
    made = [whole.step(loss) for loss in losses]
    before = Run(**settings)
    for loss in losses[:saved_after]:
        before.step(loss)
    after = Run(saved=json.loads(json.dumps(before.mishaps.state())), **settings)
    after.progress.step = saved_after
    assert [after.step(loss) for loss in losses[saved_after:]] == made[saved_after:]
    assert before.records + after.records == whole.records

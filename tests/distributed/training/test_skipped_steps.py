"""A skipped step is a record, counts as a step but not as an update, and too many at the floor end the run."""

import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases
from tests.distributed.training import option_cases as options

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def outcome():
    settings = options.with_options(
        cases.config(stage=1, micro=8), train={"precision": "fp16", "loss_scale": {"patience": 3}}
    )
    return run_ranks(1, options.run_overflowing, settings, 4.0)[0]


def test_each_is_recorded_with_the_scales_before_and_after(outcome):
    records = [record for record in outcome[0] if record["kind"] == "skip"]
    assert [(r["step"], r["loss_scale"], r["next_loss_scale"]) for r in records] == [
        (1, 4.0, 2.0),
        (2, 2.0, 1.0),
        (3, 1.0, 1.0),
        (4, 1.0, 1.0),
        (5, 1.0, 1.0),
    ]


def test_its_samples_are_consumed_and_it_is_no_update(outcome):
    progress = outcome[1]
    assert (progress.step, progress.samples, progress.updates) == (5, 5 * cases.GLOBAL_BATCH, 0)


def test_the_run_stops_with_one_line_when_the_floor_does_not_help(outcome):
    assert outcome[2].startswith("step 5: fp16 gradients overflow at loss scale 1, train.loss_scale.floor, for 3 steps")
    assert "\n" not in outcome[2]

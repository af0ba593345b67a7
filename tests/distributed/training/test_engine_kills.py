"""A save of a real engine that is killed at any operation leaves a checkpoint that the engine can load, whole."""

import pytest

from tests.distributed.training import kill_cases

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    "points", [pytest.param(4, id="4"), pytest.param(kill_cases.POINTS, id="40", marks=pytest.mark.slow)]
)
def test_after_each_kill_the_old_or_the_new_one_is_loaded(tmp_path, points):
    for found in kill_cases.results(points, str(tmp_path)).values():
        assert found["whole"] == found["kills"] == points
        assert min(found["operations"]) >= 3
        if points == kill_cases.POINTS:
            assert {outcome.split(", ")[1] for outcome in found["outcomes"]} == {"step 1 loaded", "step 2 loaded"}

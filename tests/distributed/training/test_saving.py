"""A checkpoint that is written in the background is that of its step, and all ranks hear of its fate together."""

import pytest

from megatron_glm.checkpoint.reading import CheckpointReader
from tests.distributed.ranks import run_ranks
from tests.distributed.training import layouts, saving_cases
from tests.distributed.training.saving_cases import Job

pytestmark = pytest.mark.distributed

ZERO, PIPELINE = {"stage": 2}, {"stage": 1, "pipeline": 2}
JOBS = {
    "inline": Job(ZERO, background=False),
    "slow": Job(ZERO, disk="slow", pause=0.25),
    "inline pipeline": Job(PIPELINE, background=False),
    "slow pipeline": Job(PIPELINE, disk="slow", pause=0.25),
    "rank 1 slow": Job(ZERO, disk="rank 1 slow"),
    "rank 0 full": Job(ZERO, disk="rank 0 full"),
    "rank 1 full": Job(ZERO, disk="rank 1 full"),
    "interrupted": Job(ZERO, disk="slow", interrupted=True),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("saving")


@pytest.fixture(scope="module")
def found(directory):
    """Of each job, what two ranks found."""
    run = saving_cases.Jobs(directory, JOBS)
    results = run_ranks(2, layouts.in_turn, run, [job.config() for job in JOBS.values()])
    return {name: [of_rank[place] for of_rank in results] for place, name in enumerate(JOBS)}


@pytest.fixture
def hashes(directory):
    def of(job, step):
        return CheckpointReader(directory / job / f"step_{step:08}").parameter_hashes()

    return of


@pytest.mark.parametrize("kind", ["", " pipeline"])
def test_it_holds_its_own_step_though_training_went_on(found, hashes, kind):
    inline, slow = found["inline" + kind][0], found["slow" + kind][0]
    assert slow["loss"] == inline["loss"]
    assert 2 not in slow["visible"][2]  # a step later it was still being written
    for step in (2, 8):
        assert hashes("slow" + kind, step) == hashes("inline" + kind, step)
    assert hashes("slow" + kind, 2) != hashes("slow" + kind, 8)


@pytest.mark.parametrize("kind", ["", " pipeline"])
def test_training_stops_for_the_copy_only_and_not_for_the_writing(found, kind):
    for of_rank in found["slow" + kind]:
        assert [record["step"] for record in of_rank["records"]] == [2, 8]
        first = of_rank["records"][0]
        assert first["seconds"] > 0.6  # four flushes and more
        assert first["stall_seconds"] < first["seconds"] / 3


@pytest.mark.parametrize("kind", ["", " pipeline"])
def test_inline_it_is_there_when_the_step_ends(found, kind):
    first = found["inline" + kind][0]
    assert (first["visible"][0], first["visible"][1], first["visible"][-1]) == ([], [2], [2, 8])


def test_nothing_is_published_before_the_slowest_rank_has_written(found):
    first, second = found["rank 1 slow"]
    assert first["error"] == second["error"] == ""
    assert first["left"] == ["step_00000002", "step_00000008"]
    assert all(record["seconds"] > 0.8 for record in first["records"])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_of_one_rank_stops_all_ranks_at_the_same_step_with_the_same_line(found, rank):
    first, second = found[f"rank {rank} full"]
    assert first["error"] == second["error"]
    assert f"step_00000002: not saved: rank {rank}: " in first["error"]
    assert "No space left on device" in first["error"]
    assert first["failed at"] == second["failed at"] >= 2
    assert first["left"] == first["records"] == []


def test_what_is_under_way_is_finished_when_training_fails(found, directory):
    first, second = found["interrupted"]
    assert first["error"] == second["error"] == "interrupted"
    assert first["left"] == ["step_00000002"]
    assert CheckpointReader(directory / "interrupted" / "step_00000002").step == 2

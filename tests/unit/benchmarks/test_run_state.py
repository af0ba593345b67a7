"""The phase of a run is told from what lies on the disk, also where an earlier start has left something."""

import pytest

from benchmarks.run_state import PHASES, RunState


@pytest.fixture
def place(tmp_path):
    """Makes files and directories below the parent of the output, and removes them where the name begins with -."""

    def make(*names):
        for name in names:
            path = tmp_path / name.removeprefix("-")
            if name.startswith("-"):
                path.rmdir()
            elif path.suffix == ".json":
                path.touch()
            else:
                path.mkdir(parents=True)

    return make


STEPS = [
    ([], "starting"),
    ([".data.tmp/units", ".data.tmp/units/run.json"], "hashing"),
    ([".data.tmp/units/hashes", ".data.tmp/units/hashes/000000.ab"], "hashing"),
    ([".data.tmp/units/hashes/000000", "-.data.tmp/units/hashes/000000.ab"], "hashing"),
    ([".data.tmp/units/duplicates.ab"], "sorting"),
    ([".data.tmp/units/000000.ab"], "tokenizing"),
    (["-.data.tmp/units/000000.ab", ".data.tmp/units/000000"], "tokenizing"),
    ([".data.tmp/train"], "placing"),
    ([".data.tmp/manifest.json"], "manifest"),
    ([".data.units"], "publishing"),
    (["data"], "cleaning"),
]


def test_the_phases_of_an_undisturbed_run(tmp_path, place):
    state, seen = RunState(tmp_path / "data"), []
    for names, phase in STEPS:
        place(*names)
        assert state.phase() == phase
        seen.append(PHASES.index(phase))
    assert seen == sorted(seen)


def test_what_an_earlier_start_has_left_is_not_taken_for_progress(tmp_path, place):
    units = ".data.tmp/units"
    place(f"{units}/hashes/000000", f"{units}/000000", f"{units}/000001.old", f"{units}/duplicates.old")
    state = RunState(tmp_path / "data")
    assert state.phase() == "starting"
    place(f"-{units}/000001.old", f"-{units}/duplicates.old")
    assert state.phase() == "verifying"
    place(f"{units}/duplicates.new")
    assert state.phase() == "verifying"
    place(f"{units}/000001.new")
    assert state.phase() == "tokenizing"

"""A save that is killed, loses power or finds the disk full at any operation leaves the old checkpoint or the new."""

import os
import shutil
from pathlib import Path

import pytest

from megatron_glm.checkpoint.discovery import published, scan_checkpoints
from megatron_glm.checkpoint.manifest import verify_checkpoint
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.retention import Retention, remove_expendable
from megatron_glm.errors import CheckpointError
from tests.unit.checkpoint.file_faults import DEAD, NEVER, LosesPower, PowerLoss, dies_at, full_at


def save_and_delete(checkpoints, directory, files, **changes):
    """Save step 2, then keep the two newest checkpoints: all that a run does to its directory."""
    path = checkpoints.save(directory, 2, files=files, **changes)
    remove_expendable(directory, run_id="run", retention=Retention(last=2), files=files)
    return path


def rank_threads(checkpoints, directory, files_of):
    """Save step 2 with two ranks, each through its own files; their results by rank."""
    values = checkpoints.whole_fragments(checkpoints.make_values(2))

    def save(ranks):
        fragments = values[ranks.rank :: 2]
        return checkpoints.save(
            directory, 2, fragments=fragments, ranks=ranks, files=files_of(ranks.rank), part_bytes=64
        )

    return checkpoints.run_threads(2, save)


def fresh(checkpoints, directory: Path, scenario: str) -> Path:
    """A directory with step 1.

    For `replace` there is an older step 2 too (its values: seed 1) and what a killed save of it left; for `delete` a
    step 0, which the save of step 2 makes expendable.
    """
    template = directory.with_name(scenario)
    if not template.exists():
        checkpoints.save(template, 1)
        if scenario == "delete":
            checkpoints.save(template, 0, seed=1)
        if scenario == "replace":
            checkpoints.save(template, 2, seed=1)
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(template, directory)
    if scenario == "replace":
        (directory / ".step_00000002.tmp" / "tokenizer").mkdir(parents=True)
        (directory / ".step_00000002.tmp" / "tokenizer" / "half").write_bytes(b"x")
    return directory


def assert_old_or_new(checkpoints, directory: Path) -> bool:
    """The next start gets a whole checkpoint, the next save works and tidies; returns whether it was the new one."""
    scan = scan_checkpoints(directory, hashes=True)
    assert scan.newest is not None
    assert scan.rejected == ()
    for path in published(directory).values():
        verify_checkpoint(path)  # older ones too: none is half deleted
    reader = CheckpointReader(scan.newest)
    seed = reader.state["seed"]
    assert checkpoints.holds(reader, seed)
    checkpoints.save(directory, 3)
    assert checkpoints.holds(CheckpointReader(directory / "step_00000003"), 3)
    assert all(not path.name.startswith(".") for path in directory.iterdir())
    return seed == 2


SCENARIOS = ["first", "replace", "delete"]


def sweep(checkpoints, directory: Path, scenario: str, save) -> list[bool]:
    """Run `save(k)` in a forked process that dies at operation k, for every k; whether the new one was left."""
    outcomes: list[bool] = []
    while True:
        fresh(checkpoints, directory, scenario)
        child = os.fork()
        if not child:
            try:
                save(len(outcomes))
                os._exit(0)
            finally:
                os._exit(1)
        exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert exit_code in (0, DEAD)
        if exit_code == 0:
            return outcomes
        outcomes.append(assert_old_or_new(checkpoints, directory))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_at_any_operation_leaves_the_old_or_the_new_checkpoint(checkpoints, tmp_path, scenario):
    def save(k):
        save_and_delete(checkpoints, tmp_path / "run", dies_at(k))

    outcomes = sweep(checkpoints, tmp_path / "run", scenario, save)
    assert outcomes == sorted(outcomes)  # once visible, it stays visible
    assert outcomes.count(False) > 15
    assert outcomes.count(True) >= 1  # before the parent's fsync, at least


@pytest.mark.parametrize("rank", [0, 1])
def test_a_job_of_two_ranks_killed_by_either_at_any_operation_leaves_old_or_new(checkpoints, tmp_path, rank):
    def save(k):
        own = [dies_at(NEVER), dies_at(NEVER)]
        own[rank] = dies_at(k)
        rank_threads(checkpoints, tmp_path / "run", own.__getitem__)

    assert len(sweep(checkpoints, tmp_path / "run", "replace", save)) >= 6


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("keep_entries", [False, True])
@pytest.mark.parametrize("keep_content", [False, True])
def test_power_lost_before_any_operation_leaves_the_old_or_the_new_checkpoint(
    checkpoints, tmp_path, scenario, keep_entries, keep_content
):
    for k in range(200):
        directory = fresh(checkpoints, tmp_path / "run", scenario)
        files = LosesPower(k, keep_entries=keep_entries, keep_content=keep_content)
        try:
            save_and_delete(checkpoints, directory, files)
            returned = True
        except PowerLoss:
            returned = False
        files.settle()
        is_new = assert_old_or_new(checkpoints, directory)
        if returned:
            break
    assert is_new  # what save has promised outlives the power
    assert 15 < k < 200


@pytest.mark.parametrize("scenario", ["first", "replace"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_at_any_operation_of_either_rank_fails_on_both_and_leaves_nothing_half_written(
    checkpoints, tmp_path, scenario, rank
):
    for k in range(200):
        directory = fresh(checkpoints, tmp_path / "run", scenario)
        own = {mine: full_at(k if mine == rank else NEVER) for mine in (0, 1)}
        results = rank_threads(checkpoints, directory, own.get)
        failed = [isinstance(result, CheckpointError) for result in results]
        assert failed in ([True, True], [False, False])
        if all(failed):
            assert f"rank {rank}: " in str(results[0])
            assert "No space left on device" in str(results[0])
        left = [path.name for path in directory.iterdir() if path.name.startswith(".")]
        # Only the removal of something that is done with may be put off to the next save.
        assert not left or own[rank].log[k][0] in ("unlink", "remove_directory")
        assert_old_or_new(checkpoints, directory)
        if k >= len(own[rank].log):
            break
    assert 5 < k < 200


def test_a_full_disk_is_told_with_needed_and_free_bytes(checkpoints, tmp_path):
    probe = dies_at(NEVER)
    checkpoints.save(tmp_path / "probe", 2, files=probe)
    first_write = next(k for k, (name, *_) in enumerate(probe.log) if name == "write")
    with pytest.raises(
        CheckpointError, match=r"rank_00000_000\.safetensors: No space left.*: \d+ bytes to write, \d+ free"
    ):
        checkpoints.save(tmp_path / "run", 2, files=full_at(first_write))


def test_every_byte_is_on_the_disk_before_the_rename_and_the_rename_before_success(checkpoints, tmp_path):
    files = dies_at(NEVER)
    path = checkpoints.save(tmp_path, 2, files=files)
    names = [name for name, *_ in files.log]
    rename = names.index("rename")
    assert names[:rename].count("open") == names[:rename].count("write") == names[:rename].count("sync") == 6
    temporary = tmp_path / ".step_00000002.tmp"
    assert files.log[rename - 1] == ("sync_directory", temporary)
    assert files.log[rename - 2][0] == "sync"
    assert files.log[rename - 4] == ("open", temporary / "manifest.json")
    assert files.log[rename:] == [("rename", temporary, path), ("sync_directory", tmp_path)]

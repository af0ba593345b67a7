"""What a run keeps, and that nothing else is ever lost."""

import errno
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.checkpoint import retention
from megatron_glm.checkpoint.discovery import deleted_name, published, scan_checkpoints
from megatron_glm.checkpoint.retention import Retention, remove_expendable
from megatron_glm.files import Files
from tests.unit.checkpoint.file_faults import NEVER, WatchedFiles, dies_at


def steps(directory):
    return sorted(published(directory))


@pytest.fixture
def run(checkpoints, tmp_path):
    """A run's directory with steps 10, 20, … 60."""
    for step in range(10, 70, 10):
        checkpoints.save(tmp_path, step)
    return tmp_path


def damage(path):
    part = path / "rank_00000_000.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)


@given(found=st.sets(st.integers(0, 300)), last=st.integers(2, 9), every=st.none() | st.integers(1, 40))
def test_the_newest_and_every_nth_are_kept_and_nothing_else(found, last, every):
    expendable = Retention(last, every).expendable(found)
    kept = found - set(expendable)
    assert expendable == sorted(expendable)
    assert kept >= set(sorted(found)[-last:])
    assert kept >= {step for step in found if every and step % every == 0}
    assert len(kept) <= last + len([step for step in found if every and step % every == 0])


@given(found=st.sets(st.integers(0, 300)))
def test_without_a_limit_all_are_kept(found):
    assert Retention(None).expendable(found) == []


def test_those_that_need_not_be_kept_are_gone_and_the_others_whole(run):
    removed = remove_expendable(run, run_id="run", retention=Retention(2, every=30), files=Files())
    assert [path.name for path in removed] == ["step_00000010", "step_00000020", "step_00000040"]
    assert steps(run) == [30, 50, 60]
    assert not [path for path in run.iterdir() if path.name.startswith(".")]
    assert scan_checkpoints(run, hashes=True).newest == run / "step_00000060"


def test_another_run_s_checkpoints_are_left_alone_and_count_for_nothing(run, checkpoints):
    for step in (15, 25, 100, 110):
        checkpoints.save(run, step, run_id="another")
    remove_expendable(run, run_id="run", retention=Retention(2))
    assert steps(run) == [15, 25, 50, 60, 100, 110]


def test_what_is_no_whole_checkpoint_is_left_alone_and_counts_for_nothing(run):
    (run / "step_00000060" / "state.json").unlink()
    (run / "step_00000070").mkdir()
    remove_expendable(run, run_id="run", retention=Retention(2))
    assert steps(run) == [40, 50, 60, 70]


def test_the_newest_that_proves_whole_is_kept_whatever_its_step(run, caplog):
    for step in (40, 50, 60):  # the sizes agree: only the hashes tell
        damage(run / f"step_000000{step}")
    with caplog.at_level(logging.WARNING):
        remove_expendable(run, run_id="run", retention=Retention(2))
    assert steps(run) == [30, 50, 60]
    assert "step_00000060/rank_00000_000.safetensors was changed" in caplog.text


def test_nothing_is_deleted_where_nothing_proves_whole(run, caplog):
    for path in published(run).values():
        damage(path)
    assert remove_expendable(run, run_id="run", retention=Retention(2)) == ()
    assert steps(run) == [10, 20, 30, 40, 50, 60]
    assert "no checkpoint proves whole; none is deleted" in caplog.text


def test_one_is_renamed_and_that_is_on_the_disk_before_any_of_its_files_goes(run):
    files = dies_at(NEVER)
    remove_expendable(run, run_id="run", retention=Retention(5), files=files)
    aside = deleted_name(run / "step_00000010")
    assert files.log[:2] == [("rename", run / "step_00000010", aside), ("sync_directory", run)]
    assert {name for name, *_ in files.log[2:]} == {"unlink", "remove_directory"}


def fails_at(k):
    def before(files, number, name, arguments):
        if number == k:
            raise OSError(errno.EACCES, "Permission denied", "f")

    return WatchedFiles(before)


def test_a_deletion_that_fails_at_any_operation_is_a_warning_and_done_by_the_next_save(checkpoints, tmp_path, caplog):
    def three(name):
        for step in (1, 2, 3):
            checkpoints.save(tmp_path / name, step)
        return tmp_path / name

    undisturbed = fails_at(NEVER)
    remove_expendable(three("undisturbed"), run_id="run", retention=Retention(2), files=undisturbed)
    assert len(undisturbed.log) == 10
    for k in range(10):
        run = three(str(k))
        caplog.clear()
        remove_expendable(run, run_id="run", retention=Retention(2), files=fails_at(k))
        assert "cannot be deleted (Permission denied); the next save tries again" in caplog.text
        checkpoints.save(run, 4)
        remove_expendable(run, run_id="run", retention=Retention(2))
        assert steps(run) == [3, 4]
        assert not [path for path in run.iterdir() if path.name.startswith(".")]


def test_a_directory_that_cannot_be_read_is_a_warning(run, caplog, monkeypatch):
    def fails(directory):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(retention, "published", fails)
    assert remove_expendable(run, run_id="run", retention=Retention(2)) == ()
    assert "cannot be read (Input/output error); nothing is deleted" in caplog.text

"""A run that could not save its checkpoints does not start."""

import os
import shutil
import subprocess
from contextlib import suppress

import pytest

from megatron_glm.checkpoint.probing import checkpoint_bytes, probe
from megatron_glm.errors import CheckpointError
from megatron_glm.files import Files
from megatron_glm.parallel.ranks import SingleProcess
from tests.unit.checkpoint.file_faults import NEVER, dies_at, full_at


def test_a_place_that_will_do_is_left_as_it_was(tmp_path):
    probe(tmp_path / "runs" / "checkpoints", bytes_of_one=1000, ranks=SingleProcess())
    assert list((tmp_path / "runs" / "checkpoints").iterdir()) == []


def test_what_a_killed_probe_left_is_no_obstacle(tmp_path):
    (tmp_path / "..probe_00000.tmp").write_bytes(b"")
    (tmp_path / ".probe_00000").write_bytes(b"")
    probe(tmp_path, bytes_of_one=1, ranks=SingleProcess())
    assert list(tmp_path.iterdir()) == []


def test_two_checkpoints_must_find_room(tmp_path):
    def with_free(free):
        probe(tmp_path, bytes_of_one=600_000, ranks=SingleProcess(), free_bytes=lambda path: free)

    with_free(1_200_000)
    with pytest.raises(
        CheckpointError,
        match=r"train\.output: '.*' cannot be used: rank 0: a checkpoint takes 600 kB, and two must find room, but"
        r" 1\.2 MB are free; choose another",
    ):
        with_free(1_199_999)
    assert list(tmp_path.iterdir()) == []


def test_the_estimate_is_what_a_checkpoint_takes(checkpoints, tmp_path):
    shapes = {"w": (300, 100)}
    values = checkpoints.make_values(1, shapes)
    path = checkpoints.save(tmp_path, 1, fragments=checkpoints.whole_fragments(values), shapes=shapes, attachments={})
    size = sum(file.stat().st_size for file in path.iterdir())
    assert checkpoint_bytes(shapes) == 12 * 30_000
    assert size == pytest.approx(checkpoint_bytes(shapes), rel=0.02)


def test_a_failure_at_any_operation_of_any_rank_is_told_on_all_and_leaves_nothing(checkpoints, tmp_path):
    undisturbed = dies_at(NEVER)
    probe(tmp_path, bytes_of_one=1, ranks=SingleProcess(), files=undisturbed)
    for k in range(len(undisturbed.log)):
        for culprit in (0, 1):

            def work(ranks, k=k, culprit=culprit):
                files = full_at(k) if ranks.rank == culprit else Files()
                probe(tmp_path, bytes_of_one=1, ranks=ranks, files=files)

            results = checkpoints.run_threads(2, work)
            if undisturbed.log[k][0] == "unlink":  # the probe has succeeded by then
                assert results == [None, None]
                (tmp_path / f".probe_0000{culprit}").unlink()
                continue
            assert [type(result) for result in results] == [CheckpointError, CheckpointError]
            assert str(results[0]) == str(results[1])
            assert f"rank {culprit}: No space left on device" in str(results[0])
            assert [path for path in tmp_path.iterdir() if not path.name.endswith(".tmp")] == []
            for path in tmp_path.iterdir():
                path.unlink()


def test_a_rank_that_writes_to_another_disk_is_found_out(checkpoints, tmp_path):
    def work(ranks):
        probe(tmp_path / f"machine{ranks.rank}", bytes_of_one=1, ranks=ranks)

    results = checkpoints.run_threads(2, work)
    for result in results:
        assert "rank 0: what rank 1 writes is not seen here: its machine has another disk there" in str(result)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(directory)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def test_a_disk_without_room_is_refused_before_training(small_disk):
    probe(small_disk, bytes_of_one=30_000, ranks=SingleProcess())
    with pytest.raises(CheckpointError, match=r"takes 40 kB, and two must find room, but 61\.4 kB are free"):
        probe(small_disk, bytes_of_one=40_000, ranks=SingleProcess())


def fill(path):
    """A file that takes all that is left of its disk; its size in bytes."""
    size = 0
    with open(path, "wb", buffering=0) as stream, suppress(OSError):
        while True:
            size += stream.write(b"x" * 4096)
    return size


def test_a_real_full_disk_fails_the_save_whole_and_keeps_the_older_checkpoint(small_disk, checkpoints):
    def saving_fails():
        try:
            checkpoints.save(small_disk, 2, files=Files())
        except CheckpointError as error:
            return str(error)

    checkpoints.save(small_disk, 1, files=Files())
    size, room, failures = fill(small_disk / "filler"), 0, []
    while failure := saving_fails():  # a little more room each time, until it fits
        failures.append(failure)
        assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "step_00000001"]
        room += 4096
        os.truncate(small_disk / "filler", size - room)
    assert len(failures) > 2
    assert all("No space left on device" in failure for failure in failures)
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "step_00000001", "step_00000002"]

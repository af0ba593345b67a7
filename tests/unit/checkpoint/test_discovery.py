"""The newest whole checkpoint is found, and those that are not whole are named."""

import json
import logging
import shutil
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megatron_glm.checkpoint import manifest
from megatron_glm.checkpoint.discovery import find_checkpoint, replaced_name, scan_checkpoints
from megatron_glm.checkpoint.manifest import read_manifest, verify_checkpoint
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.errors import CheckpointError

PART = "rank_00000_000.safetensors"


def flip(path, position=-1, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.fixture
def two(checkpoints, tmp_path):
    """A directory with steps 1 and 2."""
    checkpoints.save(tmp_path, 1)
    checkpoints.save(tmp_path, 2)
    return tmp_path


def test_no_directory_and_an_empty_one_hold_no_checkpoint(tmp_path):
    assert find_checkpoint(tmp_path) is None
    assert find_checkpoint(tmp_path / "absent") is None


def test_the_newest_is_by_step_not_by_time_or_spelling(two, checkpoints):
    checkpoints.save(two, 123456789)
    checkpoints.save(two, 99999999)
    for name in (".step_99999999999.tmp", "step_5", "step_0000000x", "latest"):
        (two / name).mkdir()
    (two / "step_88888888888").write_text("a file")
    scan = scan_checkpoints(two)
    assert (scan.newest.name, scan.rejected) == ("step_123456789", ())


@pytest.mark.parametrize("name", [PART, "parameters.json", "state.json", "tokenizer/tokenizer.model", "manifest.json"])
@pytest.mark.parametrize("damage", [truncate, flip, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_damaged_file_of_any_kind_is_named_and_the_older_checkpoint_taken(two, name, damage):
    path = two / "step_00000002" / name
    damage(path)
    scan = scan_checkpoints(two, hashes=True)
    assert scan.newest == two / "step_00000001"
    assert [rejected.path for rejected in scan.rejected] == [two / "step_00000002"]
    assert str(path) in scan.rejected[0].reason
    with pytest.raises(CheckpointError):
        CheckpointReader(two / "step_00000002")


def test_sizes_are_checked_without_reading_and_contents_only_on_demand(two):
    flip(two / "step_00000002" / PART)
    assert scan_checkpoints(two).newest.name == "step_00000002"
    assert scan_checkpoints(two, hashes=True).newest.name == "step_00000001"
    truncate(two / "step_00000002" / PART)
    assert scan_checkpoints(two).newest.name == "step_00000001"


def test_several_files_are_read_at_once_and_the_first_by_name_is_told(two, monkeypatch):
    damaged = [two / "step_00000002" / name for name in ("parameters.json", "state.json")]
    for path in damaged:
        flip(path)
    meeting, hash_of = threading.Barrier(2), manifest.sha256_of

    def together(path):
        if path in damaged:
            meeting.wait(timeout=20)
        return hash_of(path)

    monkeypatch.setattr(manifest, "sha256_of", together)
    with pytest.raises(CheckpointError, match=r"parameters\.json was changed"):
        verify_checkpoint(two / "step_00000002")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bit_of_any_file_is_seen(checkpoints, tmp_path, data):
    path = tmp_path / "step_00000001"
    if not path.exists():
        checkpoints.save(tmp_path, 1)
    file = data.draw(st.sampled_from(sorted(file for file in path.rglob("*") if file.is_file())))
    position = data.draw(st.integers(0, file.stat().st_size - 1))
    bit = data.draw(st.integers(0, 7))
    flip(file, position, bit)
    with pytest.raises(CheckpointError):
        verify_checkpoint(path)
    flip(file, position, bit)
    verify_checkpoint(path)


def test_a_file_that_the_manifest_does_not_name_is_told_and_never_read(two, checkpoints, caplog):
    # Network file systems leave such files; they must not cost a good checkpoint.
    (two / "step_00000002" / ".nfs0001").write_bytes(b"x")
    assert find_checkpoint(two).name == "step_00000002"
    with caplog.at_level(logging.WARNING):
        reader = CheckpointReader(two / "step_00000002")
    assert ".nfs0001" in caplog.text
    assert set(reader.attachments()) == {"tokenizer/tokenizer.model"}


def test_a_checkpoint_under_another_step_s_name_is_rejected(two):
    shutil.copytree(two / "step_00000001", two / "step_00000007")
    scan = scan_checkpoints(two)
    assert scan.newest.name == "step_00000002"
    assert scan.rejected[0].reason.endswith("step_00000007 holds step 1")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(max_size=40),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["format_version", "files", "step", "run_id", "sha256"]), inner)
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_garbage_in_place_of_a_manifest_is_one_clear_error(tmp_path, content):
    path = tmp_path / "step_00000001"
    path.mkdir(exist_ok=True)
    (path / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        read_manifest(path)


def test_a_deeply_nested_manifest_is_one_clear_error(tmp_path):
    (tmp_path / "manifest.json").write_bytes(b"[" * 200_000)
    with pytest.raises(CheckpointError, match="not a checkpoint's manifest"):
        read_manifest(tmp_path)


def test_a_manifest_of_a_later_format_says_so(two):
    path = two / "step_00000002" / "manifest.json"
    path.write_text(path.read_text().replace('"format_version": 2', '"format_version": 3'))
    with pytest.raises(CheckpointError, match="format version 3, this program reads 2"):
        read_manifest(path.parent)


def test_what_killed_saves_left_is_removed_by_the_next_with_a_notice(two, checkpoints, caplog):
    left = two / ".step_00000003.tmp"
    (left / "tokenizer").mkdir(parents=True)
    (left / "tokenizer" / "x").write_text("half")
    with caplog.at_level(logging.WARNING):
        checkpoints.save(two, 4)
    assert not left.exists()
    assert f"{left}: left by an interrupted save" in caplog.text


def test_a_checkpoint_moved_aside_is_found_and_put_back(two, checkpoints):
    path = two / "step_00000002"
    path.rename(replaced_name(path))
    assert find_checkpoint(two) == replaced_name(path)
    checkpoints.save(two, 1)
    assert find_checkpoint(two) == path


def test_a_step_saved_again_replaces_the_old_one(two, checkpoints):
    checkpoints.save(two, 2, seed=99)
    assert checkpoints.holds(CheckpointReader(two / "step_00000002"), 99)
    assert sorted(path.name for path in two.iterdir()) == ["step_00000001", "step_00000002"]


def test_a_path_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no such checkpoint directory"):
        CheckpointReader(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        CheckpointReader(tmp_path)

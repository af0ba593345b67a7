"""Links that lead out of a directory: what they lead to is read by its hash, and never written, cut or removed."""

import pytest

from megatron_glm.files import Files, atomic_directory, atomic_file
from megatron_glm.locking import exclusive


@pytest.fixture
def outside(tmp_path):
    """A file of somebody's in a directory of somebody's."""
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "mine.txt").write_text("mine")
    yield directory
    assert (directory / "mine.txt").read_text() == "mine"
    assert [path.name for path in directory.iterdir()] == ["mine.txt"]


def test_a_lock_is_not_taken_on_what_a_link_leads_to(outside, tmp_path):
    (tmp_path / ".lock").symlink_to(outside / "mine.txt")
    with pytest.raises(OSError, match="symbolic links"), exclusive(tmp_path / ".lock"):
        pytest.fail("the lock was taken")


def test_of_a_link_to_a_directory_the_link_alone_is_removed(outside, tmp_path):
    (tmp_path / "link").symlink_to(outside)
    Files().remove_tree(tmp_path / "link")
    assert not (tmp_path / "link").is_symlink()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(outside)
    Files().remove_tree(tmp_path / "tree")


@pytest.mark.parametrize("target", ["mine.txt", "missing"])
def test_a_file_is_not_written_through_a_link_at_its_temporary_name(outside, tmp_path, target):
    (tmp_path / ".a.tmp").symlink_to(outside / target)
    with atomic_file(tmp_path / "a") as stream:
        stream.write(b"ours")
    assert (tmp_path / "a").read_bytes() == b"ours"


@pytest.mark.parametrize("keeps", [None, lambda error: True])
def test_a_directory_is_not_written_through_a_link_at_its_temporary_name(outside, tmp_path, keeps):
    (tmp_path / ".a.tmp").symlink_to(outside)
    with atomic_directory(tmp_path / "a", keeps=keeps) as directory:
        (directory / "b").write_bytes(b"ours")
    assert (tmp_path / "a" / "b").read_bytes() == b"ours"
    assert not (tmp_path / "a").is_symlink()

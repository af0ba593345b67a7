"""Files and directories appear whole or not at all."""

import hashlib

import pytest

from megatron_glm.files import Files, atomic_directory, atomic_file, sha256_of, temporary_name


class Logged(Files):
    """Remembers the operations."""

    def __init__(self):
        self.log = []

    def open(self, path):
        self.log.append("open")
        return super().open(path)

    def sync(self, stream):
        self.log.append("sync")
        super().sync(stream)

    def sync_directory(self, path):
        self.log.append(f"sync {path.name}")
        super().sync_directory(path)

    def rename(self, source, target):
        self.log.append(f"rename to {target.name}")
        super().rename(source, target)

    def unlink(self, path):
        self.log.append(f"unlink {path.name}")
        super().unlink(path)

    def remove_directory(self, path):
        self.log.append(f"remove {path.name}")
        super().remove_directory(path)


def test_a_file_appears_when_its_block_ends(tmp_path):
    path = tmp_path / "x"
    files = Logged()
    with atomic_file(path, files) as stream:
        stream.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert files.log == ["open", "sync", "rename to x", f"sync {tmp_path.name}"]


def test_a_failing_block_keeps_the_old_file_and_leaves_nothing(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), atomic_file(path) as stream:
        stream.write(b"new" + None)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_written_over(tmp_path):
    temporary_name(tmp_path / "x").write_bytes(b"half")
    with atomic_file(tmp_path / "x") as stream:
        stream.write(b"whole")
    temporary_name(tmp_path / "d").mkdir()
    (temporary_name(tmp_path / "d") / "half").write_bytes(b"")
    with atomic_directory(tmp_path / "d") as directory:
        (directory / "y").write_bytes(b"whole")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["d", "x", "y"]


def test_a_directory_appears_when_its_block_ends_and_not_when_it_fails(tmp_path):
    path = tmp_path / "d"
    with pytest.raises(TypeError), atomic_directory(path) as directory:
        (directory / "y").write_bytes(None)
    assert list(tmp_path.iterdir()) == []
    path.mkdir()  # an empty one is taken
    with atomic_directory(path) as directory:
        (directory / "y").write_bytes(b"whole")
    assert (path / "y").read_bytes() == b"whole"
    with pytest.raises(FileExistsError, match="exists already"), atomic_directory(path):
        pass


def test_a_failing_clean_up_does_not_hide_the_failure(tmp_path):
    class Stuck(Files):
        def unlink(self, path):
            raise OSError("stuck")

    with pytest.raises(RuntimeError, match="the cause"), atomic_file(tmp_path / "x", Stuck()):
        raise RuntimeError("the cause")


def test_a_tree_is_removed_file_by_file_and_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"")
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "x").write_bytes(b"")
    (tree / "link").symlink_to(outside)
    files = Logged()
    files.remove_tree(tree)
    assert sorted(files.log) == ["remove a", "remove tree", "unlink link", "unlink x"]
    assert files.log[-1] == "remove tree"
    assert (outside / "kept").exists()


def test_opening_never_overwrites(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        Files().open(tmp_path / "x")


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path):
    data = bytes(range(256)) * 10_000
    (tmp_path / "x").write_bytes(data)
    assert sha256_of(tmp_path / "x") == hashlib.sha256(data).hexdigest()


def test_a_directory_that_is_to_be_continued_is_found_as_the_failure_left_it(tmp_path):
    target = tmp_path / "data"

    def keeps(error):
        return isinstance(error, KeyboardInterrupt)

    def fail(error, name):
        with atomic_directory(target, keeps=keeps) as directory:
            (directory / name).write_text("half")
            raise error

    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt(), "first")
    assert [path.name for path in tmp_path.iterdir()] == [".data.tmp"]
    with atomic_directory(target, keeps=keeps) as directory:
        assert [path.name for path in directory.iterdir()] == ["first"]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    target.rename(tmp_path / "other")
    with pytest.raises(ValueError, match="no use"):
        fail(ValueError("no use"), "second")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]

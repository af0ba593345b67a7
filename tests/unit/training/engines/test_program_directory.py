"""What torch.compile has kept is loaded only if it is whole and ours."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from filelock import FileLock

from megatron_glm.training.engines.program_directory import remove_cut_programs

REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def library():
    """The bytes of a shared library."""
    folder = Path(sysconfig.get_path("stdlib")) / "lib-dynload"
    return min(folder.glob("*.so"), key=lambda file: file.stat().st_size).read_bytes()


def program(place, content, name="cabc.main.so"):
    file = place / "ab" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    return file


def test_a_whole_program_stays(tmp_path, library):
    file = program(tmp_path, library)
    remove_cut_programs(tmp_path)
    assert file.read_bytes() == library


@pytest.mark.parametrize("kept", [0, 1, 63, 64, 0.5, -1])
def test_a_program_that_is_cut_short_anywhere_is_removed(tmp_path, library, kept):
    file = program(tmp_path, library[: int(len(library) * kept) if isinstance(kept, float) else kept])
    remove_cut_programs(tmp_path)
    assert not file.exists()


def test_a_program_of_which_only_the_size_was_written_is_removed(tmp_path, library):
    file = program(tmp_path, bytes(len(library)))
    remove_cut_programs(tmp_path)
    assert not file.exists()


def test_what_another_process_is_writing_is_left_to_it(tmp_path, library):
    file = program(tmp_path, library[:100])
    (tmp_path / "locks").mkdir()
    with FileLock(tmp_path / "locks" / "cabc.lock"):  # as torch calls it
        remove_cut_programs(tmp_path)
    assert file.exists()
    remove_cut_programs(tmp_path)
    assert not file.exists()


def test_sources_that_a_loss_of_power_left_empty_are_removed_and_others_stay(tmp_path):
    files = [program(tmp_path, content, name) for content, name in [(b"", "a.py"), (b"", "b.cpp"), (b"x", "c.py")]]
    remove_cut_programs(tmp_path)
    assert [file.exists() for file in files] == [False, False, True]


def test_a_directory_that_is_not_there_is_no_error(tmp_path):
    remove_cut_programs(tmp_path / "none")


def test_a_directory_that_cannot_be_made_is_told_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    code = (
        "from megatron_glm.errors import ConfigError\n"
        "from megatron_glm.training.engines.program_directory import see_that_torch_has_one\n"
        "try:\n    see_that_torch_has_one()\nexcept ConfigError as error:\n    print(error)"
    )
    place = tmp_path / "file" / "programs"
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(place)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert told.startswith("TORCHINDUCTOR_CACHE_DIR: torch cannot make its directory")
    assert str(place) in told

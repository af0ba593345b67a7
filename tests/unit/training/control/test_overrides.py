"""The file of settings that change under a run's hands."""

import os

import pytest

from megatron_glm.config.schema import Overrides
from megatron_glm.training.control.overrides import OVERRIDES_FILE, OverridesFile


@pytest.fixture
def refusals():
    return []


@pytest.fixture
def watched(tmp_path, refusals):
    return OverridesFile(tmp_path, held=Overrides(), refused=refusals.append)


def write(directory, text):
    """As one is told to: aside, then in its place."""
    (directory / "new").write_text(text)
    os.replace(directory / "new", directory / OVERRIDES_FILE)


def test_no_file_is_no_news(watched):
    assert watched.news() is None


def test_a_setting_is_news_once_and_a_removed_file_is_the_way_back(watched, tmp_path):
    write(tmp_path, "learning_rate: 1e-4\n")
    assert watched.news() == {"learning_rate": 1e-4, "floor": None}
    assert watched.news() is None
    write(tmp_path, "learning_rate: 1e-4\nfloor: 0.02\n")
    assert watched.news() == {"learning_rate": 1e-4, "floor": 0.02}
    (tmp_path / OVERRIDES_FILE).unlink()
    assert watched.news() == {"learning_rate": None, "floor": None}
    assert watched.news() is None


def test_what_a_checkpoint_holds_is_no_news_and_its_absence_is(tmp_path, refusals):
    held = Overrides(learning_rate=1e-4)
    write(tmp_path, "learning_rate: 0.0001\n")
    assert OverridesFile(tmp_path, held=held, refused=refusals.append).news() is None
    (tmp_path / OVERRIDES_FILE).unlink()
    news = OverridesFile(tmp_path, held=held, refused=refusals.append).news()
    assert news == {"learning_rate": None, "floor": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rte: 1\n", "unknown key 'learning_rte'; did you mean 'learning_rate'?"),
        ("learning_rate: -1\n", "learning_rate: input should be greater than 0 (got -1)"),
        ("floor: 2\n", "floor: input should be less than or equal to 1 (got 2)"),
        ("", "holds no settings; allowed: learning_rate, floor; remove the file to end them"),
        ("[1\n", "expected ',' or ']'"),
    ],
)
def test_what_cannot_be_adopted_is_said_once_and_changes_nothing(watched, tmp_path, refusals, text, message):
    write(tmp_path, "learning_rate: 1e-4\n")
    watched.news()
    write(tmp_path, text)
    assert watched.news() is None
    assert watched.news() is None
    (line,) = refusals
    assert line.startswith(str(tmp_path / OVERRIDES_FILE))
    assert message in line
    assert line.endswith("nothing is changed")


@pytest.mark.parametrize("kind", ["text", "directory"])
def test_what_cannot_be_read_is_said_once_too_and_again_when_it_comes_back(watched, tmp_path, refusals, kind):
    file = tmp_path / OVERRIDES_FILE
    for _ in range(2):
        file.mkdir() if kind == "directory" else file.write_bytes(b"floor: 0.2 # \xff\n")
        assert [watched.news() for _ in range(3)] == [None] * 3
        file.rmdir() if kind == "directory" else file.unlink()
        assert watched.news() is None
    assert len(refusals) == 2
    assert all(line.startswith(f"{file}: cannot be read") for line in refusals)

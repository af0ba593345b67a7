"""Inputs are the files that were named, and those that patterns match, in an order that is always the same."""

import pytest

from data_tools.inputs import open_inputs
from megatron_glm.errors import DataError


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Some files, made in no order, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more" / "deep").mkdir(parents=True)
    for name in ("b.txt", "more/c.txt", "B.txt", "a10.txt", "a2.txt", "d.jsonl", "more/deep/e.txt", "x[1].txt"):
        (tmp_path / name).write_text("text")


def paths(*given):
    return [file.path for file in open_inputs(given, line_documents=False)]


def test_a_pattern_stands_for_its_files_sorted_by_code_points(files):
    assert paths("[abB]*.txt") == ["B.txt", "a10.txt", "a2.txt", "b.txt"]
    assert paths("more/**/*.txt") == ["more/c.txt", "more/deep/e.txt"]


def test_arguments_keep_their_order_among_patterns(files):
    assert paths("d.jsonl", "a*.txt", "B.txt") == ["d.jsonl", "a10.txt", "a2.txt", "B.txt"]


def test_a_file_whose_name_looks_like_a_pattern_is_itself(files):
    assert paths("x[1].txt") == ["x[1].txt"]


def test_a_pattern_without_files_is_an_error(files):
    with pytest.raises(DataError, match=r"--input: no file matches 'z\*\.txt'"):
        paths("z*.txt")


def test_a_pattern_that_matches_an_unknown_kind_is_an_error(files):
    with pytest.raises(DataError, match="'more' has an unknown suffix"):
        paths("m*")

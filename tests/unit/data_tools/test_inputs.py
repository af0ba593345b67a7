"""Inputs are the files that were named, and those that patterns match, in an order that is always the same."""

import gzip
import os

import pytest
import zstandard

from data_tools.documents import DocumentReader
from data_tools.inputs import open_inputs, whole
from megatron_glm.errors import DataError


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Some files, made in no order, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more" / "deep").mkdir(parents=True)
    for name in ("b.txt", "more/c.txt", "B.txt", "a10.txt", "a2.txt", "d.jsonl", "more/deep/e.txt", "x[1].txt"):
        (tmp_path / name).write_text("text")
    return tmp_path


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
    (files / "more.csv").write_text("text")
    with pytest.raises(DataError, match=r"'more\.csv' has an unknown suffix"):
        paths("more.*")


def test_a_directory_stands_for_all_files_below_it_sorted_by_code_points(files):
    assert paths("more") == paths("more/") == paths("mor?") == ["more/c.txt", "more/deep/e.txt"]
    assert paths("d.jsonl", "more/deep") == ["d.jsonl", "more/deep/e.txt"]
    assert paths("more/**") == ["more/c.txt", "more/deep/e.txt"]


def test_hidden_files_and_markers_of_a_directory_are_left_out(files):
    for name in (".c.txt.crc", "_SUCCESS", "_temporary/x.txt", ".cache/x.txt"):
        (files / "more" / name).parent.mkdir(exist_ok=True)
        (files / "more" / name).write_text("text")
    assert paths("more") == ["more/c.txt", "more/deep/e.txt"]


def test_a_file_of_an_unknown_kind_in_a_directory_is_named(files):
    (files / "more" / "readme.md").write_text("text")
    with pytest.raises(DataError, match=r"'more/readme\.md' has an unknown suffix"):
        paths("more")


def test_a_directory_without_files_is_an_error(files):
    (files / "none" / "below").mkdir(parents=True)
    with pytest.raises(DataError, match="the directory 'none' holds no file"):
        paths("none")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["b.txt", "b.txt"], "'b.txt' is given twice, its documents would be doubled; leave one out"),
        (["b.txt", "./b.txt"], "'./b.txt' is given twice, also as 'b.txt'"),
        (["a*.txt", "a2*"], "'a2.txt' is given twice"),
        (["more", "more/deep/e.txt"], "'more/deep/e.txt' is given twice"),
        (["link.txt", "b.txt"], "'b.txt' is given twice, also as 'link.txt'"),
        (["hard.txt", "b.txt"], "'b.txt' is given twice, also as 'hard.txt'"),
        (["more", "linked"], "'linked/e.txt' is given twice, also as 'more/deep/e.txt'"),
    ],
)
def test_a_file_that_is_given_twice_is_an_error(files, given, message):
    (files / "link.txt").symlink_to("b.txt")
    (files / "hard.txt").hardlink_to(files / "b.txt")
    (files / "linked").symlink_to("more/deep")
    with pytest.raises(DataError, match=message):
        paths(*given)


def test_a_pipe_is_refused_at_once(files):
    os.mkfifo(files / "pipe.jsonl")
    with pytest.raises(DataError, match=r"'pipe\.jsonl' is no regular file"):
        paths("pipe.jsonl")


def test_a_name_that_the_manifest_cannot_hold_is_refused(files):
    name = os.fsdecode(b"caf\xe9.txt")
    (files / name).write_text("text")
    with pytest.raises(DataError, match=r"the name b'caf\\xe9.txt' is no UTF-8; rename the file"):
        paths(name)


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".json"])
def test_every_kind_of_text_may_be_compressed(tmp_path, kind, compression):
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[compression]
    content = b"one\n\ntwo" if kind == ".txt" else b'{"text": "one"}\n{"text": "two"}'
    path = tmp_path / f"a{kind}{compression}"
    path.write_bytes(pack(content))
    (file,) = open_inputs([str(path)], line_documents=False)
    assert file.unit == "byte"
    assert [text for text, _ in DocumentReader(whole(file), "text")] == ["one", "two"]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_output_of_datatrove_is_read_as_it_is(tmp_path, form):
    writers = pytest.importorskip("datatrove.pipeline.writers")
    data = pytest.importorskip("datatrove.data")
    writer = {"jsonl": writers.JsonlWriter, "parquet": writers.ParquetWriter}[form](str(tmp_path / "out"))
    texts = [[f"text {i} of rank {rank}\n\n你好" for i in range(5)] for rank in range(3)]
    for rank, own in enumerate(texts):
        documents = (data.Document(text=text, id=str(i), metadata={"i": i}) for i, text in enumerate(own))
        for _ in writer.run(documents, rank=rank, world_size=3):
            pass
    files = open_inputs([str(tmp_path / "out")], line_documents=False)
    assert [file.path.rsplit("/")[-1].split(".")[0][-5:] for file in files] == ["00000", "00001", "00002"]
    assert [[text for text, _ in DocumentReader(whole(file), "text")] for file in files] == texts

"""The place of a document finds it again, in every kind of file and however the file is cut."""

import gzip
import json
import re

import pyarrow
import pyarrow.parquet
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_tools.documents import DocumentReader
from data_tools.inputs import cut, open_inputs, whole

MARK = b"\xef\xbb\xbf"
per_example = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS = st.lists(st.text(max_size=8), min_size=1)
BLANKS = st.sampled_from([b"", b"\n", b"\r\n", b" \t\n\n"])
ENDS = st.sampled_from([b"\n", b"\r\n"])


def read(path, part_bytes, *, line_documents=False):
    (file,) = open_inputs([str(path)], line_documents=line_documents)
    return [pair for part in cut(file, part_bytes) for pair in DocumentReader(part, "text")]


def packed(path, content, frame_bytes):
    """Write content in several gzip members or Zstandard frames; returns the path."""
    pack = gzip.compress if path.suffix == ".gz" else zstandard.ZstdCompressor().compress
    pieces = [content[i : i + frame_bytes] for i in range(0, len(content), frame_bytes)]
    path.write_bytes(b"".join(map(pack, pieces)))
    return path


def lines_of(texts, blank, end, mark):
    return mark + b"".join(blank + json.dumps({"text": text}).encode() + end for text in texts)


@per_example
@given(TEXTS, BLANKS, ENDS, st.sampled_from([b"", MARK]), st.integers(1, 60))
def test_json_lines(tmp_path, texts, blank, end, mark, part_bytes):
    content = lines_of(texts, blank, end, mark)
    (tmp_path / "a.jsonl").write_bytes(content)
    found = read(tmp_path / "a.jsonl", part_bytes)
    assert [text for text, _ in found] == texts
    assert [json.loads(content[place:].splitlines()[0])["text"] for _, place in found] == texts


@per_example
@given(TEXTS, BLANKS, ENDS, st.sampled_from([b"", MARK]), st.sampled_from(["gz", "zst"]), st.integers(1, 60))
def test_compressed_lines_by_their_place_in_the_content(tmp_path, texts, blank, end, mark, suffix, frame_bytes):
    content = lines_of(texts, blank, end, mark)
    found = read(packed(tmp_path / f"a.json.{suffix}", content, frame_bytes), 1)
    assert [text for text, _ in found] == texts
    assert [json.loads(content[place:].splitlines()[0])["text"] for _, place in found] == texts


@per_example
@given(st.lists(st.sampled_from(["a", "bc", "", " ", "é"])), ENDS, st.sampled_from([b"", MARK]), st.integers(1, 9))
def test_paragraphs(tmp_path, lines, end, mark, part_bytes):
    content = mark + b"".join(line.encode() + end for line in ["first", *lines])
    (tmp_path / "a.txt").write_bytes(content)
    found = read(tmp_path / "a.txt", part_bytes)
    for text, place in found:
        assert re.split(r"\n\s*\n|\n\s*$", content[place:].decode().replace("\r\n", "\n"))[0] == text
    assert len({place for _, place in found}) == len(found)
    assert found == read(packed(tmp_path / "a.txt.zst", content, 7), 1)


@per_example
@given(st.lists(st.sampled_from(["a", "bc", "", " "]), min_size=1), ENDS, st.integers(1, 9))
def test_lines(tmp_path, lines, end, part_bytes):
    content = b"".join(line.encode() + end for line in lines)
    (tmp_path / "a.txt").write_bytes(content)
    found = read(tmp_path / "a.txt", part_bytes, line_documents=True)
    assert [text for text, _ in found] == lines
    assert [content[place:].splitlines()[0].decode() for _, place in found] == lines


@per_example
@given(TEXTS, st.integers(1, 4), st.integers(1, 2000))
def test_rows(tmp_path, texts, group_rows, part_bytes):
    table = pyarrow.table({"id": list(range(len(texts))), "text": texts})
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=group_rows)
    assert read(path, part_bytes) == list(zip(texts, range(len(texts)), strict=True))


def test_a_file_of_many_blocks(tmp_path):
    texts = ["x" * (i * 977 % 5000) for i in range(300)]
    content = lines_of(texts, b"", b"\n", b"")
    (tmp_path / "a.jsonl").write_bytes(content)
    begins = [0, *(match.end() for match in re.finditer(b"\n", content))][:-1]
    assert read(tmp_path / "a.jsonl", 10**9) == list(zip(texts, begins, strict=True))
    assert read(packed(tmp_path / "a.jsonl.gz", content, 99_991), 1) == list(zip(texts, begins, strict=True))


def test_all_bytes_are_counted_as_read(tmp_path):
    content = lines_of("abc", b"\n", b"\n", MARK)
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "a.txt").write_bytes(content)
    packed(tmp_path / "b.jsonl.gz", content, 20)
    packed(tmp_path / "c.txt.zst", content, 20)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b", "c"]}), tmp_path / "d.parquet", row_group_size=2)
    for file in open_inputs([str(tmp_path)], line_documents=False):
        reader = DocumentReader(whole(file), "text")
        assert len(list(reader)) == 3
        assert reader.bytes_read == file.bytes

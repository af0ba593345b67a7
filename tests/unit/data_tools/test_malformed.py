"""A malformed document is handed over with its place, reason and bytes, and the others come as ever."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from data_tools.documents import DocumentReader, Malformed
from data_tools.inputs import cut, open_inputs
from megatron_glm.errors import DataError

GOOD = b'{"text": "good"}'
BAD_LINES = [
    (b'{"text": "a\xffb"}', "invalid UTF-8"),
    (b'{"text": "a",}', "broken JSON"),
    (b'{"text": "a"}{"text": "b"}', "broken JSON"),
    (b'{"text": "a\x01b"}', "broken JSON"),
    (b'{"text": ' + b"9" * 5000 + b"}", "broken JSON"),
    (b"[" * 100_000, "broken JSON"),
    (b'["text"]', "no object"),
    (b'"text"', "no object"),
    (b"null", "no object"),
    (b'{"content": "a"}', "no text key"),
    (b'{"text": null}', "text is no string"),
    (b'{"text": {"text": "a"}}', "text is no string"),
]


def read(path, part_bytes=10**9, *, line_documents=False, text_key="text"):
    (file,) = open_inputs([str(path)], line_documents=line_documents)
    malformed = []
    documents = [d for part in cut(file, part_bytes) for d in DocumentReader(part, text_key, malformed.append)]
    return documents, malformed


@pytest.mark.parametrize("part_bytes", [7, 10**9])
@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_of_json_lines(tmp_path, line, reason, part_bytes):
    content = GOOD + b"\n\n" + line + b"\r\n" + GOOD
    (tmp_path / "a.jsonl").write_bytes(content)
    documents, malformed = read(tmp_path / "a.jsonl", part_bytes)
    assert documents == [("good", 0), ("good", len(content) - len(GOOD))]
    assert malformed == [Malformed(len(GOOD) + 2, reason, line)]


def test_of_compressed_lines(tmp_path):
    content = b"".join(GOOD + b"\n" + line + b"\n" for line, _ in BAD_LINES)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))
    documents, malformed = read(tmp_path / "a.jsonl.gz")
    assert len(documents) == len(BAD_LINES)
    assert [(m.raw, m.reason) for m in malformed] == BAD_LINES
    assert all(content[m.place :].startswith(m.raw) for m in malformed)


@pytest.mark.parametrize("part_bytes", [1, 10**9])
def test_of_paragraphs_and_of_lines(tmp_path, part_bytes):
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo\nth\xf4ree\n\nfour")
    documents, malformed = read(tmp_path / "a.txt", part_bytes)
    assert documents == [("one", 0), ("four", 17)]
    assert malformed == [Malformed(5, "invalid UTF-8", b"two\nth\xf4ree")]
    documents, malformed = read(tmp_path / "a.txt", part_bytes, line_documents=True)
    assert [text for text, _ in documents] == ["one", "", "two", "", "four"]
    assert malformed == [Malformed(9, "invalid UTF-8", b"th\xf4ree")]


def test_of_rows(tmp_path):
    invalid = pyarrow.array([b"good", None, b"a\xffb", b"good"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": invalid}), tmp_path / "a.parquet", row_group_size=3)
    documents, malformed = read(tmp_path / "a.parquet")
    assert documents == [("good", 0), ("good", 3)]
    assert malformed == [Malformed(1, "null", b""), Malformed(2, "invalid UTF-8", b"a\xffb")]
    (file,) = open_inputs([str(tmp_path / "a.parquet")], line_documents=False)
    with pytest.raises(DataError, match=r"a\.parquet: row 1: 'text' is null"):
        list(DocumentReader(cut(file, 1)[0], "text"))


@pytest.mark.parametrize("suffix", ["txt.gz", "jsonl.gz"])
def test_a_cut_file_is_never_passed_over(tmp_path, suffix):
    whole = gzip.compress(b"".join(b'{"text": "%d"}\n\n' % (i * 7919) for i in range(300)))
    (tmp_path / f"a.{suffix}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="truncated"):
        read(tmp_path / f"a.{suffix}")


@pytest.mark.parametrize("content", ['[\n{"text": "a"},\n{"text": "b"}\n]', '[{"text": "a"}, {"text": "b"}]'])
def test_a_json_array_is_told_how_to_become_lines(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    (file,) = open_inputs([str(tmp_path / "a.json")], line_documents=False)
    with pytest.raises(DataError, match=r"a\.json:1: .*each line must be one JSON object .*jq -c"):
        list(DocumentReader(cut(file, 10**9)[0], "text"))


@pytest.mark.parametrize(
    ("record", "text"),
    [({"a": {"b": "in"}}, "in"), ({"a": {"b": "in"}, "a.b": "literal"}, "literal"), ({"a.b": "literal"}, "literal")],
)
def test_a_dotted_key_goes_into_objects_unless_a_key_has_that_name(tmp_path, record, text):
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    assert read(tmp_path / "a.jsonl", text_key="a.b") == ([(text, 0)], [])


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"a": "b"}, "no text key"),
        ({"a": {"c": "x"}}, "no text key"),
        ({"a": ["b"]}, "no text key"),
        ({"a": {"b": 1}}, "text is no string"),
        (["a.b"], "no object"),
        ("a.b", "no object"),
    ],
)
def test_a_dotted_key_that_leads_nowhere(tmp_path, record, reason):
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    documents, malformed = read(tmp_path / "a.jsonl", text_key="a.b")
    assert documents == []
    assert [m.reason for m in malformed] == [reason]

"""Documents come out whole and in order, however a file is cut, and a bad one is named by file and line."""

import gzip
import json

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_tools.documents import DocumentReader
from data_tools.inputs import cut, open_inputs
from megatron_glm.errors import DataError

TEXT = "First line,\n  second line.\n\n\n \t\nSecond document.\r\nIts end\r\n\r\nThird"
per_example = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=6)


def documents(path, part_bytes=10**9, *, line_documents=False, text_key="text"):
    (file,) = open_inputs([str(path)], line_documents=line_documents)
    return [text for part in cut(file, part_bytes) for text, _ in DocumentReader(part, text_key)]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def jsonl(*texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def test_blank_lines_part_the_documents_of_a_text_file(tmp_path):
    found = documents(write(tmp_path / "a.txt", TEXT))
    assert found == ["First line,\n  second line.", "Second document.\nIts end", "Third"]


def test_every_line_is_a_document_if_asked(tmp_path):
    path = write(tmp_path / "a.txt", "one\r\n\ntwo\n  three")
    assert documents(path, line_documents=True) == ["one", "", "two", "  three"]


def test_json_lines_give_their_text_as_it_is(tmp_path):
    path = write(
        tmp_path / "a.jsonl", b'{"id": 7, "text": " a\\n\\nb "}\r\n\n{"text": ""}\n{"text": "\\u4f60\xe5\xa5\xbd"}'
    )
    assert documents(path) == [" a\n\nb ", "", "你好"]


@per_example
@given(lines=st.lists(LINE, min_size=1), part_bytes=st.integers(1, 30), line_documents=st.booleans())
def test_cutting_a_text_file_changes_no_document(tmp_path, lines, part_bytes, line_documents):
    path = write(tmp_path / "a.txt", "\n".join(lines) + "\n")
    whole = documents(path, line_documents=line_documents)
    assert documents(path, part_bytes, line_documents=line_documents) == whole
    if line_documents:
        assert whole == [lines[0].removeprefix("\ufeff"), *lines[1:]]


@per_example
@given(texts=st.lists(st.text(max_size=8), min_size=1), part_bytes=st.integers(1, 60))
def test_cutting_a_json_file_changes_no_document(tmp_path, texts, part_bytes):
    assert documents(write(tmp_path / "a.jsonl", jsonl(*texts)), part_bytes) == texts


@per_example
@given(content=st.binary(min_size=1, max_size=60), part_bytes=st.integers(1, 20))
def test_parts_tile_the_file(tmp_path, content, part_bytes):
    (file,) = open_inputs([str(write(tmp_path / "a.txt", content))], line_documents=False)
    parts = cut(file, part_bytes)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == len(content)


def test_one_long_document_is_not_cut(tmp_path):
    path = write(tmp_path / "a.txt", "x" * 5000 + "\n\ny")
    (file,) = open_inputs([str(path)], line_documents=False)
    assert [(part.start, part.stop) for part in cut(file, 10)] == [(0, 5002), (5002, 5003)]


def test_a_byte_order_mark_is_no_text(tmp_path):
    assert documents(write(tmp_path / "a.txt", b"\xef\xbb\xbfone")) == ["one"]
    assert documents(write(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + jsonl("one"))) == ["one"]


def test_all_members_of_gzip_and_all_frames_of_zstandard_are_read(tmp_path):
    first, second = jsonl("one", "two"), jsonl("three")
    compress = zstandard.ZstdCompressor().compress
    assert documents(write(tmp_path / "a.jsonl.gz", gzip.compress(first) + gzip.compress(second))) == [
        "one",
        "two",
        "three",
    ]
    # A document may cross frames, and a frame may be empty or written by a stream of unknown size.
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    frames = compress(first[:20]) + compress(b"") + stream.compress(first[20:]) + stream.flush() + compress(second)
    assert documents(write(tmp_path / "a.jsonl.zst", frames)) == ["one", "two", "three"]


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_files_cut_anywhere_are_errors(tmp_path, suffix):
    content = jsonl(*(f"document {i} {i * 7919}" for i in range(300)))
    whole = gzip.compress(content) if suffix == "gz" else zstandard.ZstdCompressor().compress(content)
    for size in (1, 3, 9, len(whole) // 2, len(whole) - 5, len(whole) - 1):
        path = write(tmp_path / f"a.jsonl.{suffix}", whole[:size])
        with pytest.raises(DataError, match=rf"a\.jsonl\.{suffix}: (truncated|not a whole)"):
            documents(path)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_files_that_are_damaged_or_something_else_are_errors(tmp_path, suffix):
    whole = gzip.compress(jsonl("one")) if suffix == "gz" else zstandard.ZstdCompressor().compress(jsonl("one"))
    for content in (jsonl("one"), whole + b"trailing junk", whole[:12] + b"\xff\xff\xff" + whole[15:]):
        with pytest.raises(DataError, match=r"not a whole|truncated|broken JSON|invalid UTF-8"):
            documents(write(tmp_path / f"a.jsonl.{suffix}", content))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a",}', "broken JSON .*each line must be one JSON object"),
        (b'{"text": "a"}{"text": "b"}', r"broken JSON \(Extra data, column 14\)"),
        (b'{"text": "a\x01b"}', "broken JSON .*control character"),
        (b"[" * 100_000, "broken JSON"),
        (b'{"text": "a"', "broken JSON"),
        (b'["text"]', "expected a JSON object with the key 'text', got a list"),
        (b"3", "expected a JSON object .*got a number"),
        (b'{"content": "a", "id": 1}', r"no key 'text' \(keys there: 'content', 'id'\); name the right one by --text"),
        (b"{}", r"no key 'text' \(keys there: none\)"),
        (b'{"text": null}', "'text' must be a string, got null"),
        (b'{"text": ["a"]}', "'text' must be a string, got a list"),
        (b'{"text": "a\xffb"}', "invalid UTF-8 .byte 0xff at offset 11 of the line"),
    ],
)
@pytest.mark.parametrize("part_bytes", [7, 10**9])
def test_a_bad_json_line_is_named_by_file_and_line(tmp_path, line, message, part_bytes):
    path = write(tmp_path / "bad.jsonl", jsonl("one") + b"\n" + jsonl("two") + line + b"\n" + jsonl("three"))
    with pytest.raises(DataError, match=rf"bad\.jsonl:4: {message}"):
        documents(path, part_bytes)


def test_a_bad_line_of_a_compressed_file_is_named_too(tmp_path):
    path = write(tmp_path / "bad.jsonl.gz", gzip.compress(jsonl("one", "two") + b"{"))
    with pytest.raises(DataError, match=r"bad\.jsonl\.gz:3: broken JSON"):
        documents(path)


@pytest.mark.parametrize("part_bytes", [4, 10**9])
@pytest.mark.parametrize("line_documents", [False, True])
def test_invalid_text_is_named_by_its_line(tmp_path, part_bytes, line_documents):
    for end in (b"", b"\n", b"\nmore\n\n"):
        path = write(tmp_path / "bad.txt", b"one\n\ntwo\nth\xf4ree" + end)
        with pytest.raises(DataError, match=r"bad\.txt:4: invalid UTF-8 \(byte 0xf4 at offset 2 of the line\)"):
            documents(path, part_bytes, line_documents=line_documents)


def test_lone_surrogates_become_replacement_characters_and_are_counted(tmp_path):
    path = write(tmp_path / "a.jsonl", r'{"text": "x\ud800y"}' "\n" r'{"text": "\ud83d\ude00", "other": "\udc00"}' "\n")
    (file,) = open_inputs([str(path)], line_documents=False)
    reader = DocumentReader(cut(file, 10**9)[0], "text")
    assert [text for text, _ in reader] == ["x\ufffdy", "😀"]
    assert reader.repaired == 1


def test_the_key_of_the_text_can_be_chosen(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"content": "a", "text": 3}')
    assert documents(path, text_key="content") == ["a"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.csv", r"unknown suffix, known are .txt, .jsonl, .json \(each also .gz or .zst\), .parquet, .arrow"),
        ("empty.txt", "is empty"),
        ("absent.jsonl", "No such file"),
        ("absent.csv", "No such file"),
        ("absent", "No such file"),
        ("folder.txt", "holds no file"),
    ],
)
def test_inputs_that_cannot_be_read_are_named(tmp_path, name, message):
    (tmp_path / "a.csv").touch()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(DataError, match=rf"--input: .*'.*{name}'.*{message}"):
        open_inputs([str(tmp_path / name)], line_documents=False)

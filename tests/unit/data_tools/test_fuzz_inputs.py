"""Corpora that nobody vouches for: each document is read as it stands or refused by place and reason."""

import gzip
import io
import json
import re

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from data_tools.compressed import zstd_stream
from data_tools.documents import DocumentReader, Malformed
from data_tools.input_paths import expand
from data_tools.inputs import cut, open_inputs
from megatron_glm.errors import DataError
from tests import fuzzing
from tests.damage import damaged, damaged_tree, to_json
from tests.fuzzing import bounded, fuzz, fuzz_test

TEXTS = [
    "the river",
    "",
    "zwei\nZeilen",
    "中文 é",
    "[MASK] <|endofpiece|>",
    'quoted "text" \\ \x00',
    "x" * 300,
    "\U0001f600",
]
LINES = b"".join(
    json.dumps({"id": n, "text": text, "meta": {"text": None}}).encode() + b"\n" for n, text in enumerate(TEXTS)
)
SNIPPETS = [
    b"\n",
    b"\r\n",
    b"\r",
    b"\xef\xbb\xbf",
    b"\0",
    b"\xff",
    b"NaN",
    b"1e999",
    b"9" * 5000,
    b"\\ud800",
    b"\xed\xa0\x80",
]
SNIPPETS += [
    b'"text": 5, ',
    b'"text": "other", ',
    b"[" * 100_000,
    b'{"text": ' * 2000,
    b"\x0b",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
]
MEMBER = {
    "gz": lambda content: gzip.compress(content, mtime=0),
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def read(path, part_bytes=10**9):
    """All documents and what was refused. Raises DataError."""
    (file,) = open_inputs([str(path)], line_documents=False)
    refused: list[Malformed] = []
    return [text for part in cut(file, part_bytes) for text, _ in DocumentReader(part, "text", refused.append)], refused


def as_they_stand(content):
    """What the lines hold, by the standard library alone: texts, and how many lines have none."""
    texts, refused = [], 0
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if line and not line.isspace():
            try:
                text = json.loads(line.decode("utf-8"))["text"]
                texts.append(re.sub("[\ud800-\udfff]", "\ufffd", text))
            except (ValueError, TypeError, KeyError, RecursionError):
                refused += 1
    return texts, refused


@fuzz_test
def test_json_lines_are_read_as_they_stand_by_fuzz(tmp_path, examples):
    path = tmp_path / "a.jsonl"

    @fuzz(examples)
    @given(content=damaged(LINES, snippets=SNIPPETS), part_bytes=st.sampled_from([7, 100, 10**9]))
    def holds(content, part_bytes):
        path.write_bytes(content)
        expected, without = as_they_stand(content)
        with bounded():
            try:
                texts, refused = read(path, part_bytes)
            except DataError:
                assert content == b""  # a whole file without a byte
            else:
                assert (texts, len(refused)) == (expected, without)

    holds()


@fuzz_test
def test_a_record_of_any_shape_has_its_text_or_a_reason_by_fuzz(tmp_path, examples):
    path = tmp_path / "a.jsonl"

    @fuzz(examples)
    @given(tree=damaged_tree({"id": 1, "text": "the river", "meta": {"text": ["x"], "n": [1.5, None]}}))
    def holds(tree):
        path.write_bytes(to_json(tree))
        expected, without = as_they_stand(path.read_bytes())
        with bounded():
            texts, refused = read(path)
            assert (texts, len(refused)) == (expected, without)

    holds()


@fuzz_test
@pytest.mark.parametrize("suffix", MEMBER)
def test_compressed_lines_are_whole_or_refused_by_fuzz(tmp_path, suffix, examples):
    path, whole = tmp_path / f"a.jsonl.{suffix}", MEMBER[suffix](LINES)

    def unpacked(content):
        if suffix == "gz":
            return gzip.decompress(content)
        with zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(
            io.BytesIO(content), read_across_frames=True
        ) as stream:
            return stream.read()

    @fuzz(examples)
    @given(content=damaged(whole))
    def holds(content):
        path.write_bytes(content)
        with bounded():
            try:
                texts, refused = read(path)
            except DataError:
                assert content != whole
            else:
                assert (texts, len(refused)) == as_they_stand(unpacked(content))

    holds()


@pytest.mark.parametrize("suffix", MEMBER)
def test_compressed_lines_that_are_cut_anywhere_or_have_one_other_bit_are_never_read_wrongly(tmp_path, suffix):
    path, whole = tmp_path / f"a.jsonl.{suffix}", MEMBER[suffix](LINES)
    for size in range(1, len(whole), 3):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"truncated|not a whole"):
            read(path)
    for bit in range(0, 8 * len(whole), 5):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            assert read(path) == (TEXTS, [])  # a bit of a header that decides nothing: a date, a system
        except DataError:
            continue


def table(kind):
    texts = pyarrow.array([*TEXTS, None] * 3)
    columns = {"id": range(len(texts)), "text": texts if kind != "dictionary" else texts.dictionary_encode()}
    if kind == "views":
        columns["text"] = texts.cast(pyarrow.string_view())
    return pyarrow.table(columns)


def columnar(kind, suffix):
    sink = io.BytesIO()
    if suffix == "parquet":
        pyarrow.parquet.write_table(table(kind), sink, row_group_size=10, write_page_checksum=True)
    else:
        with pyarrow.ipc.new_stream(sink, table(kind).schema) as stream:
            stream.write_table(table(kind), max_chunksize=10)
    return sink.getvalue()


def test_a_bomb_unfolds_a_part_at_a_time(monkeypatch):
    size = 1 << 28
    bomb = MEMBER["zst"](bytes(size))
    assert len(bomb) < 1 << 14
    opened = zstd_stream(io.BytesIO(bomb), "bomb")
    monkeypatch.setattr(fuzzing, "MEMORY", 200 << 20)
    with bounded():
        assert sum(map(len, iter(lambda: opened.read(1 << 20), b""))) == size


def test_a_column_whose_name_is_no_text_is_told(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(columnar("strings", "parquet").replace(b"text", b"te\xfft"))
    with pytest.raises(DataError, match="not a whole Parquet file"):
        read(path)


def test_a_gzip_file_of_zeros_is_no_empty_corpus(tmp_path):
    # What a crashed machine leaves of a file; zeros are padding behind a member only.
    (tmp_path / "a.jsonl.gz").write_bytes(bytes(4096))
    with pytest.raises(DataError, match="not a whole gzip file"):
        read(tmp_path / "a.jsonl.gz")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINES) + bytes(4096))
    assert read(tmp_path / "a.jsonl.gz") == (TEXTS, [])


@fuzz_test
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", ["strings", "dictionary", "views"])
def test_tables_give_texts_or_an_error_by_fuzz(tmp_path, kind, suffix, examples):
    path, whole = tmp_path / f"a.{suffix}", columnar(kind, suffix)
    path.write_bytes(whole)
    truth, _ = read(path)
    assert truth == TEXTS * 3

    # Most of a small Parquet file is its footer; what is in front of it has examples of its own.
    footer = 8 + int.from_bytes(whole[-8:-4], "little") if suffix == "parquet" else 0
    front = damaged(whole[: len(whole) - footer]).map(lambda front: front + whole[len(whole) - footer :])

    @fuzz(examples)
    @given(content=damaged(whole) | front)
    def holds(content):
        path.write_bytes(content)
        with bounded():
            try:
                texts, _ = read(path)
            except DataError:
                assert content != whole
            else:
                assert all(type(text) is str for text in texts)
                "".join(texts).encode("utf-8")

    holds()


def test_no_byte_of_a_footer_ends_the_process(tmp_path):
    """Asked for a column whose statistics contradict the schema, pyarrow does: bit 0 of some of these bytes does it."""
    path, whole = tmp_path / "a.parquet", columnar("strings", "parquet")
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    refused = 0
    for place in range(footer, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with bounded():
            try:
                read(path)
            except DataError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_tables_that_are_cut_anywhere_are_refused(tmp_path, suffix):
    path, whole = tmp_path / f"a.{suffix}", columnar("strings", suffix)
    for size in range(1, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError):
            read(path)


@fuzz_test
@pytest.mark.parametrize("name", ["state.json", "dataset_dict.json"])
def test_a_damaged_dataset_names_files_of_its_own_or_is_refused_by_fuzz(tmp_path, name, examples):
    tree = {
        "state.json": {
            "_data_files": [{"filename": "data-0.arrow"}, {"filename": "data-1.arrow"}],
            "_indices_data_files": None,
        },
        "dataset_dict.json": {"splits": ["train", "test"]},
    }[name]
    (tmp_path / "data").mkdir()

    @fuzz(examples)
    @given(content=damaged_tree(tree).map(to_json) | damaged(to_json(tree)))
    def holds(content):
        (tmp_path / "data" / name).write_bytes(content)
        with bounded():
            try:
                files = expand(str(tmp_path / "data"))
                assert all(file.startswith(f"{tmp_path}/data/") and "/../" not in file for file in files)
            except DataError:
                pass

    holds()

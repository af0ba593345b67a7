"""Parquet files and saved datasets are read whole, chunk by chunk, or refused with what to do."""

import json
import sys

import pyarrow
import pyarrow.parquet
import pytest

from data_tools.columnar import chunks, read_texts
from data_tools.documents import DocumentReader
from data_tools.inputs import cut, open_inputs, whole
from data_tools.part_stream import checksum_of_part
from megatron_glm.errors import DataError

TEXTS = [f"document {i}\r\n\n é" * (i % 5) for i in range(100)]
NUMBERS = [i * 7919 % 1000 for i in range(100)]


def parquet(path, group_rows=7, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=group_rows)
    return path


def stream(path, batch_rows=7, **columns):
    table = pyarrow.table(columns)
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return path


FORMATS = [("a.parquet", parquet), ("a.arrow", stream)]


def documents(path, part_bytes=10**9, text_key="text"):
    (file,) = open_inputs([str(path)], line_documents=False)
    return [text for part in cut(file, part_bytes) for text, _ in DocumentReader(part, text_key)]


@pytest.mark.parametrize(("name", "write"), FORMATS)
@pytest.mark.parametrize("part_bytes", [1, 3000, 10**9])
def test_cutting_a_file_changes_no_document(tmp_path, name, write, part_bytes):
    path = write(tmp_path / name, number=NUMBERS, text=TEXTS)
    assert documents(path, part_bytes) == TEXTS


@pytest.mark.parametrize(("name", "write"), FORMATS)
def test_parts_tile_the_file_in_rows_and_in_bytes(tmp_path, name, write):
    path = write(tmp_path / name, number=NUMBERS, text=TEXTS)
    (file,) = open_inputs([str(path)], line_documents=False)
    assert file.unit == "row"
    parts = cut(file, 1)
    assert len(parts) == len(chunks(str(path))) == 15
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == 100
    assert [part.extent[0] for part in parts] == [0, *(part.extent[1] for part in parts[:-1])]
    assert sum(part.bytes for part in parts) == whole(file).bytes == file.bytes
    assert 2 < len(cut(file, 3 * file.bytes // 15)) < 8


@pytest.mark.parametrize(("name", "write"), FORMATS)
def test_the_digest_of_a_part_is_of_the_bytes_of_its_rows(tmp_path, name, write):
    def digests(texts):
        (file,) = open_inputs([str(write(tmp_path / name, text=texts))], line_documents=False)
        return [checksum_of_part(part) for part in cut(file, 1)]

    changed = [TEXTS[i] if i != 51 else TEXTS[i].replace("document", "dokument") for i in range(100)]
    differing = {i for i, (a, b) in enumerate(zip(digests(TEXTS), digests(changed), strict=True)) if a != b}
    assert 51 // 7 in differing
    assert differing <= {51 // 7, 14}  # the last has the footer, with statistics of all groups


@pytest.mark.parametrize(("name", "write"), FORMATS)
@pytest.mark.parametrize(
    "kind", [pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), pyarrow.string_view()]
)
def test_every_type_of_string_is_read(tmp_path, name, write, kind):
    column = pyarrow.array(TEXTS)
    column = column.dictionary_encode() if pyarrow.types.is_dictionary(kind) else column.cast(kind)
    assert documents(write(tmp_path / name, text=column)) == TEXTS


@pytest.mark.parametrize(("name", "write"), FORMATS)
def test_a_dotted_key_is_a_field_of_a_struct_unless_a_column_has_that_name(tmp_path, name, write):
    nested = [{"b": text, "c": i} for i, text in enumerate(TEXTS)]
    path = write(tmp_path / name, a=nested)
    assert documents(path, text_key="a.b") == TEXTS
    path = write(tmp_path / name, **{"a": nested, "a.b": TEXTS[::-1]})
    assert documents(path, text_key="a.b") == TEXTS[::-1]
    with pytest.raises(DataError, match=rf"{name}: row 1: 'a.b' is null"):
        documents(write(tmp_path / name, a=[nested[0], None]), text_key="a.b")


@pytest.mark.parametrize(("name", "write"), FORMATS)
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("number", "the column 'number' holds int64, must be string"),
        ("txt", r"no column 'txt' \(columns there: 'number', 'a'\); name the right one by --text-key"),
        ("a.x", "no column 'a.x'"),
        ("number.x", "no column 'number.x'"),
        ("a", "the column 'a' holds struct<b: string>, must be string"),
    ],
)
def test_a_column_that_is_no_text_is_named(tmp_path, name, write, key, message):
    path = write(tmp_path / name, number=NUMBERS[:2], a=[{"b": "x"}, {"b": "y"}])
    with pytest.raises(DataError, match=rf"{name}: {message}"):
        documents(path, text_key=key)


@pytest.mark.parametrize(("name", "write"), FORMATS)
def test_a_file_without_rows_gives_no_document(tmp_path, name, write):
    path = write(tmp_path / name, text=pyarrow.array([], pyarrow.string()))
    assert documents(path) == []
    (file,) = open_inputs([str(path)], line_documents=False)
    assert [(part.start, part.stop, part.bytes) for part in cut(file, 1)] == [(0, 0, file.bytes)]


@pytest.mark.parametrize(("name", "write"), FORMATS)
def test_files_cut_anywhere_are_errors(tmp_path, name, write):
    path = write(tmp_path / name, text=TEXTS)
    content = path.read_bytes()
    ends = [chunk.end_byte for chunk in chunks(str(path))[:-1]]
    for size in (1, 4, 100, *ends, len(content) - 8, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(DataError, match=rf"{name}: (not a whole|truncated).*fetch"):
            documents(path)
    path.write_bytes(content + content)
    if name == "a.arrow":
        with pytest.raises(DataError, match=r"a\.arrow: truncated: .* or more after it"):
            documents(path)


def test_damage_inside_a_parquet_file_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), path, compression="zstd")
    content = path.read_bytes()
    path.write_bytes(content[:8] + b"\xff" * 60 + content[68:])
    with pytest.raises(DataError, match=r"a\.parquet: not a whole Parquet file .*fetch it again"):
        documents(path)


def test_a_page_that_fails_its_checksum_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": ["a well known text"]})
    pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    path.write_bytes(path.read_bytes().replace(b"a well known text", b"a well-known text"))
    with pytest.raises(DataError, match="CRC checksum"):
        documents(path)


def test_a_file_without_columns_has_no_text(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}).select([]), path)
    with pytest.raises(DataError, match=r"no column 'text' \(columns there: none\)"):
        documents(path)


def test_a_long_file_is_read_in_small_pieces(tmp_path):
    texts = ["x" * 1000 for _ in range(5000)]
    for write, name in ((parquet, "a.parquet"), (stream, "a.arrow")):
        path = write(tmp_path / name, 5000, text=texts)
        pieces = list(read_texts(str(path), 0, 5000, "text"))
        assert [text for piece in pieces for text in piece] == texts
        assert max(map(len, pieces)) < 200


def test_row_groups_in_another_order_are_read_as_one(tmp_path, monkeypatch):
    path = parquet(tmp_path / "a.parquet", text=TEXTS)
    monkeypatch.setattr("data_tools.columnar.row_group_begins", lambda path: list(range(15, 0, -1)))
    assert [(c.start, c.stop, c.first_byte) for c in chunks(str(path))] == [(0, 100, 0)]
    monkeypatch.undo()
    assert [text for piece in read_texts(str(path), 0, 100, "text") for text in piece] == TEXTS


@pytest.mark.parametrize(("name", "write"), FORMATS)
def test_without_pyarrow_the_fix_is_named(tmp_path, monkeypatch, name, write):
    path = write(tmp_path / name, text=TEXTS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        DataError, match=rf"--input: '.*{name}' is read by pyarrow; pip install -c constraints\.txt -e '\.\[arrow\]'"
    ):
        documents(path)


@pytest.fixture
def dataset(tmp_path):
    """A directory as `datasets` 5.2 saves one in three shards."""
    directory = tmp_path / "dataset"
    directory.mkdir()
    names = [f"data-{i:05d}-of-00003.arrow" for i in range(3)]
    for i, name in enumerate(names):
        stream(directory / name, 10, text=TEXTS[i::3])
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "ab", "_split": None}
    (directory / "state.json").write_text(json.dumps(state))
    (directory / "dataset_info.json").write_text("{}")
    return directory


def test_a_saved_dataset_is_its_shards_in_its_order(dataset):
    files = open_inputs([str(dataset)], line_documents=False)
    assert [file.path for file in files] == [f"{dataset}/data-{i:05d}-of-00003.arrow" for i in range(3)]
    found = [text for file in files for text, _ in DocumentReader(whole(file), "text")]
    assert found == TEXTS[0::3] + TEXTS[1::3] + TEXTS[2::3]


def test_a_saved_dataset_that_lacks_a_shard_is_an_error(dataset):
    (dataset / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(DataError, match=r"data-00001-of-00003\.arrow': No such file"):
        open_inputs([str(dataset)], line_documents=False)


def test_the_splits_of_a_dataset_are_named(dataset):
    parent = dataset.parent
    (parent / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match=r"several splits; name those that you mean: '.*/train', '.*/test'"):
        open_inputs([str(parent)], line_documents=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_indices_data_files": [{"filename": "indices.arrow"}]}, "is a selection of the rows .* save it again"),
        ({"_data_files": [{"name": "x"}]}, r"state\.json' names no files"),
    ],
)
def test_a_saved_dataset_of_another_form_is_refused(dataset, change, message):
    state = json.loads((dataset / "state.json").read_text())
    (dataset / "state.json").write_text(json.dumps(state | change))
    with pytest.raises(DataError, match=message):
        open_inputs([str(dataset)], line_documents=False)
    (dataset / "state.json").write_text("{")
    with pytest.raises(DataError, match=r"state\.json': broken JSON"):
        open_inputs([str(dataset)], line_documents=False)

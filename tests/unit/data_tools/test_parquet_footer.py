"""Row groups begin where pyarrow says; a footer that is none is an error, whatever it asks for."""

from contextlib import suppress

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools.parquet_footer import row_group_begins
from tests.fuzzing import bounded

COLUMNS = {
    "text": ["a", "bb", None, "d"] * 5,
    "id": list(range(20)),
    "nested": [{"a": [{"b": str(i)}], "c": i % 2 == 0} for i in range(20)],
    "empty": [None] * 20,
}


def as_pyarrow_says(path):
    with pyarrow.parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        columns = [[group.column(number) for number in range(group.num_columns)] for group in groups]
    return [min(c.dictionary_page_offset or c.data_page_offset for c in of_group) for of_group in columns]


@given(
    names=st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True),
    rows=st.integers(1, 20),
    options=st.fixed_dictionaries(
        {
            "use_dictionary": st.booleans(),
            "write_statistics": st.booleans(),
            "write_page_index": st.booleans(),
            "store_schema": st.booleans(),
            "compression": st.sampled_from(["none", "zstd"]),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
        }
    ),
)
def test_row_groups_begin_where_pyarrow_says(tmp_path_factory, names, rows, options):
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    table = pyarrow.table({name: COLUMNS[name] for name in names})
    pyarrow.parquet.write_table(table, path, row_group_size=rows, **options)
    begins = row_group_begins(str(path))
    assert begins == as_pyarrow_says(path)
    assert len(begins) == -(-20 // rows)


def test_a_file_without_row_groups_has_none(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), path)
    assert row_group_begins(str(path)) == as_pyarrow_says(path)


def test_row_groups_without_columns_begin_with_the_file(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2]}).select([]), path)
    assert set(row_group_begins(str(path))) <= {0}


def field(number, kind):
    return bytes([number << 4 | kind])


TRUE, BYTE, I64, DOUBLE, BINARY, LIST, MAP, STRUCT = 1, 3, 6, 7, 8, 9, 11, 12


def of_group(columns):
    """The footer of one row group, whose columns are the bytes of Thrift's list."""
    return field(4, LIST) + bytes([1 << 4 | STRUCT]) + field(1, LIST) + columns + b"\0\0"


def pages(*offsets):
    """One column chunk with its metadata: its data page, and its dictionary's if there is one."""
    fields = [field(9, I64), field(2, I64)]
    return bytes([1 << 4 | STRUCT]) + field(3, STRUCT) + b"".join(map(bytes.__add__, fields, offsets)) + b"\0\0"


def written(tmp_path, footer, front=b"PAR1" + bytes(60)):
    path = tmp_path / "a.parquet"
    path.write_bytes(front + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return str(path)


def test_a_column_begins_with_its_dictionary_unless_that_is_said_to_lie_at_zero(tmp_path):
    assert row_group_begins(written(tmp_path, of_group(pages(b"\x64", b"\x08")))) == [4]
    assert row_group_begins(written(tmp_path, of_group(pages(b"\x64", b"\0")))) == [50]
    assert row_group_begins(written(tmp_path, of_group(pages(b"\x64")))) == [50]


def test_what_nobody_asks_for_is_passed_over(tmp_path):
    ignored = (
        field(1, MAP) + b"\x01" + bytes([BINARY << 4 | TRUE]) + b"\x03key\x01"
        + field(1, MAP) + b"\0"
        + field(1, DOUBLE) + bytes(8) + field(1, BYTE) + b"\xff" + field(1, TRUE)
        + b"\x05\xc8\x01\x7f"  # a number of its own, 100, instead of a distance
    )  # fmt: skip
    footer = ignored + b"\x09\x08" + of_group(pages(b"\x64"))[1:]
    assert row_group_begins(written(tmp_path, footer)) == [50]


BAD = {
    "it has no footer": b"",
    "the footer ends in the middle of a value": field(4, LIST) + b"\xfc\xff\xff\xff\x07",
    "a number has more than 64 bits": field(1, I64) + b"\xff" * 12,
    "a value of kind 14, which there is not": field(1, 14) + b"\0",
    "values stand in values more than 32 deep": field(1, STRUCT) * 100_000,
    "a list holds values of kind 5, must be structs": field(4, LIST) + b"\x15\x02\0",
    "a row group begins at byte -5, but the footer at": of_group(pages(b"\x09")),
    f"a row group begins at byte {2**63 - 1}, but the footer at": of_group(pages(b"\xfe" + b"\xff" * 8 + b"\x01")),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_footer_that_is_none_is_told(tmp_path, reason):
    path = written(tmp_path, BAD[reason])
    if not BAD[reason]:
        (tmp_path / "a.parquet").write_bytes(b"PAR1" + b"\xff\xff\0\0PAR1")
    with bounded(), pytest.raises(ValueError, match=reason):
        row_group_begins(path)


@given(st.binary(max_size=200))
def test_any_bytes_are_row_groups_or_an_error(tmp_path_factory, footer):
    path = written(tmp_path_factory.mktemp("parquet"), footer)
    with bounded(), suppress(ValueError):
        assert all(0 <= begin <= 64 for begin in row_group_begins(path))

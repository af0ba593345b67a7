"""Texts of Parquet files, and of Arrow streams as Hugging Face datasets are saved in, read by pyarrow.

Such a file is a sequence of chunks (row groups, record batches) that can be read apart.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, BinaryIO

from data_tools.arrow_messages import Message, SomeMessages, messages
from data_tools.parquet_footer import row_group_begins
from megatron_glm.errors import DataError
from megatron_glm.extras import install_command

if TYPE_CHECKING:
    import pyarrow

_PARQUET = ".parquet"
_READ_BYTES, _MOST_ROWS = 1 << 20, 1 << 16  # decoded at once, about
_TEXT_BYTES = 1 << 16  # made into strings at once, about
_SHOWN_COLUMNS = 8


@dataclass(frozen=True)
class Chunk:
    """Rows [start, stop) of a file, and the bytes that hold them; the chunks of a file tile it."""

    start: int
    stop: int
    first_byte: int
    end_byte: int


def chunks(path: str) -> list[Chunk]:
    """The chunks of a file in order, at least one.

    Raises:
        DataError: the file is truncated or something else, or pyarrow is not installed.
    """
    with _reading(path):
        rows, ends = _parquet_layout(path) if path.endswith(_PARQUET) else _arrow_layout(path)
    edges = zip(pairwise([0, *rows]), pairwise([0, *ends]), strict=True)
    return [Chunk(start, stop, first, end) for (start, stop), (first, end) in edges]


def read_texts(path: str, start: int, stop: int, text_key: str) -> Iterator[list[str | bytes | None]]:
    """The texts of the rows [start, stop), some at a time; invalid UTF-8 as bytes. Both are ends of chunks.

    Raises:
        DataError: the file is damaged or has no strings under `text_key`, or pyarrow is not installed.
    """
    with _reading(path):
        columns = _parquet_columns if path.endswith(_PARQUET) else _arrow_columns
        for column in columns(path, start, stop, text_key):
            rows = max(1, len(column) * _TEXT_BYTES // max(1, column.nbytes))
            for begin in range(0, len(column), rows):
                yield _texts(column.slice(begin, rows))


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turns what pyarrow raises in the block into an error of the file."""
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(f"--input: '{path}' is read by pyarrow; {install_command('arrow')}") from error
    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the last of a column's name
        raise _damaged(path, error) from error


def _damaged(path: str, reason: object) -> DataError:
    kind = "Parquet file" if path.endswith(_PARQUET) else "Arrow stream"
    return DataError(f"{path}: not a whole {kind} ({' '.join(str(reason).split())}); fetch it again")


def _parquet_layout(path: str) -> tuple[list[int], list[int]]:
    """The ends of the row groups, in rows and in bytes; the last one has the footer too."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        counts = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    try:
        begins = row_group_begins(path)
    except ValueError as error:
        raise _damaged(path, error) from error
    if len(begins) != len(counts) or min(counts, default=0) < 0:
        raise _damaged(path, f"row groups of {counts} rows, which begin at {begins}")
    rows = list(accumulate(counts))
    if any(begin >= following for begin, following in pairwise(begins)):  # allowed, but no writer is known to do so
        rows, begins = rows[-1:], begins[:1]
    return rows or [0], [*begins[1:], os.path.getsize(path)]


def _parquet_columns(path: str, start: int, stop: int, text_key: str) -> Iterator[pyarrow.Array]:
    from pyarrow.parquet import ParquetFile

    # Without a buffer, the column of a row group is held whole.
    with ParquetFile(path, buffer_size=_READ_BYTES, page_checksum_verification=True) as file:
        _check_type(file.schema_arrow, path, text_key)
        groups, begin = [], 0
        for number in range(file.metadata.num_row_groups):
            end = begin + file.metadata.row_group(number).num_rows
            if start < end and begin < stop:
                groups.append(number)
            begin = end
        rows = max(1, stop - start)
        size = sum(file.metadata.row_group(number).total_byte_size for number in groups)
        batch_rows = max(1, min(_MOST_ROWS, _READ_BYTES * rows // max(1, size)))
        for batch in file.iter_batches(batch_rows, row_groups=groups, columns=[text_key], use_threads=False):
            yield _column(batch, text_key)


def _arrow_layout(path: str) -> tuple[list[int], list[int]]:
    """The ends of the record batches, in rows and in bytes; the first one has the schema too."""
    with open(path, "rb") as file:
        batches = [message for message in _messages(path, file) if message.rows is not None]
        size = os.fstat(file.fileno()).st_size
    return list(accumulate(batch.rows for batch in batches)) or [0], [*(batch.stop for batch in batches[:-1]), size]


def _arrow_columns(path: str, start: int, stop: int, text_key: str) -> Iterator[pyarrow.Array]:
    import pyarrow

    with open(path, "rb", buffering=0) as file:
        wanted = _of_rows(_messages(path, file), start, stop)
        with pyarrow.ipc.open_stream(io.BufferedReader(SomeMessages(file, wanted))) as stream:
            _check_type(stream.schema, path, text_key)
            for batch in stream:
                batch.validate()
                yield _checked(_column(batch, text_key))


def _messages(path: str, file: BinaryIO) -> list[Message]:
    try:
        return list(messages(file))
    except EOFError as error:
        raise DataError(
            f"{path}: truncated: the Arrow stream has no end, or more after it; fetch the file again"
        ) from error
    except ValueError as error:
        raise _damaged(path, error) from error


def _of_rows(found: Sequence[Message], start: int, stop: int) -> list[Message]:
    """The record batches of the rows [start, stop), and what they need: the schema, and dictionaries before them."""
    wanted, begin = [], 0
    for message in found:
        if begin >= stop and message.rows is not None:
            break
        if message.rows is None or begin >= start:
            wanted.append(message)
        begin += message.rows or 0
    return wanted


def _column(batch: pyarrow.RecordBatch, key: str) -> pyarrow.Array:
    import pyarrow.compute

    if key in batch.schema.names:
        return batch.column(key)
    name, *path = key.split(".")
    return pyarrow.compute.struct_field(batch.column(name), path)


def _checked(column: pyarrow.Array) -> pyarrow.Array:
    """The column, if no place in it leads out of its memory: pyarrow believes what it reads.

    Raises:
        ArrowInvalid: one does; to read it would end the process.
    """
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(column.type):
        _checked(column.dictionary)
        column.indices.validate(full=True)
        pyarrow.DictionaryArray.from_arrays(column.indices, column.dictionary)  # compares indices with the size
        return column
    binary = {
        pyarrow.string(): pyarrow.binary(),
        pyarrow.large_string(): pyarrow.large_binary(),
        pyarrow.string_view(): pyarrow.binary_view(),
    }[column.type]
    column.view(binary).validate(full=True)  # as strings, one that is no UTF-8 would condemn all
    return column


def _check_type(schema: pyarrow.Schema, path: str, key: str) -> None:
    """Raises DataError unless there are strings under `key`."""
    from pyarrow import types

    kind = _type_under(schema, key)
    if kind is None:
        names = ", ".join(f"'{name}'" for name in schema.names[:_SHOWN_COLUMNS]) or "none"
        raise DataError(f"{path}: no column '{key}' (columns there: {names}); name the right one by --text-key")
    values = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(values) or types.is_large_string(values) or types.is_string_view(values)):
        raise DataError(f"{path}: the column '{key}' holds {kind}, must be string; name another by --text-key")


def _type_under(schema: pyarrow.Schema, key: str) -> pyarrow.DataType | None:
    from pyarrow import types

    if key in schema.names:
        return schema.field(key).type
    name, *path = key.split(".")
    if name not in schema.names:
        return None
    kind = schema.field(name).type
    for part in path:
        if not types.is_struct(kind) or kind.get_field_index(part) < 0:
            return None
        kind = kind.field(part).type
    return kind


def _texts(column: pyarrow.Array) -> list[str | bytes | None]:
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_text(raw) for raw in column.cast(pyarrow.large_binary()).to_pylist()]


def _text(raw: bytes | None) -> str | bytes | None:
    try:
        return raw if raw is None else raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw

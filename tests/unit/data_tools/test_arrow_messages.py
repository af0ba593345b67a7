"""The messages of an Arrow stream are found where pyarrow wrote them, and read without mapping the file."""

import io
import os

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools.arrow_messages import SomeMessages, messages
from data_tools.columnar import chunks, read_texts
from megatron_glm.errors import DataError

TEXTS = [f"text {i} é" * (i % 7) for i in range(60)]


def written(path, *, texts=TEXTS, rows=7, dictionaries=False, **options):
    """A stream of record batches; with a dictionary that grows, a message of its own stands before some of them."""
    column = pyarrow.array(texts)
    if dictionaries:
        options["emit_dictionary_deltas"] = True
    with pyarrow.OSFile(str(path), "wb") as sink:
        batches = [column[i : i + rows] for i in range(0, len(column), rows)]
        if dictionaries:
            batches = [column[: i + rows].dictionary_encode()[i : i + rows] for i in range(0, len(column), rows)]
        schema = pyarrow.schema([("text", batches[0].type)])
        ipc = pyarrow.ipc.IpcWriteOptions(**options)
        with pyarrow.ipc.new_stream(sink, schema, options=ipc) as stream:
            for batch in batches:
                stream.write_batch(pyarrow.record_batch([batch], schema=schema))
    return path


@pytest.mark.parametrize("options", [{}, {"dictionaries": True}, {"compression": "lz4"}, {"rows": 1}])
def test_they_end_where_pyarrow_says(tmp_path, options):
    path = written(tmp_path / "a.arrow", **options)
    with open(path, "rb") as stream:
        found = list(messages(stream))
    assert [message.start for message in found] == [0, *(message.stop for message in found[:-1])]
    with pyarrow.OSFile(str(path)) as source:
        for message in found:
            read = pyarrow.ipc.read_message(source)
            assert source.tell() == message.stop
            assert (read.type == "record batch") == (message.rows is not None)
    with pyarrow.ipc.open_stream(path.read_bytes()) as stream:
        assert [message.rows for message in found if message.rows is not None] == [batch.num_rows for batch in stream]


@pytest.mark.parametrize("options", [{}, {"dictionaries": True}, {"compression": "zstd"}])
def test_any_chunks_are_read_with_the_dictionaries_before_them(tmp_path, options):
    path = str(written(tmp_path / "a.arrow", **options))
    edges = [0, *(chunk.stop for chunk in chunks(path))]
    for first in range(len(edges) - 1):
        for last in (first + 1, len(edges) - 1):
            start, stop = edges[first], edges[last]
            assert [text for some in read_texts(path, start, stop, "text") for text in some] == TEXTS[start:stop]


class Counted(io.FileIO):
    def readinto(self, buffer):
        count = super().readinto(buffer)
        self.read_bytes = getattr(self, "read_bytes", 0) + count
        return count


def test_only_what_is_asked_for_is_read(tmp_path):
    path = written(tmp_path / "a.arrow", texts=["x" * 10_000] * 60, rows=1)
    with open(path, "rb") as stream:
        found = list(messages(stream))
    with Counted(path) as stream, pyarrow.ipc.open_stream(SomeMessages(stream, [found[0], found[40]])) as batches:
        assert [batch.num_rows for batch in batches] == [1]
    assert stream.read_bytes == found[0].stop + found[40].stop - found[40].start


def test_a_file_that_is_cut_while_it_is_read_is_an_error(tmp_path):
    path = written(tmp_path / "a.arrow", texts=["x" * 100_000] * 60, rows=10)
    texts = read_texts(str(path), 0, 60, "text")
    next(texts)
    os.truncate(path, 2_500_000)  # whoever maps the file ends by SIGBUS now
    with pytest.raises(DataError, match=r"a\.arrow: not a whole Arrow stream .*fetch it again"):
        list(texts)


def test_nothing_is_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(pyarrow, "memory_map", None)
    path = str(written(tmp_path / "a.arrow"))
    assert [text for some in read_texts(path, 0, len(TEXTS), "text") for text in some] == TEXTS


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return written(tmp_path_factory.mktemp("arrow") / "a.arrow", dictionaries=True, rows=20).read_bytes()


@pytest.fixture(scope="module")
def heads(content):
    """The places of prefixes and metadata, where a changed byte is read by us."""
    stream, places, start = pyarrow.BufferReader(content), [], 0
    while stream.tell() < len(content) - 8:  # the end of the stream
        message = pyarrow.ipc.read_message(stream)
        length = len(message.serialize()) - (message.body.size if message.body else 0)
        places += range(start, start + length)
        start = stream.tell()
    return places


@given(data=st.data())
def test_whatever_its_heads_say_the_end_is_an_error_or_messages_inside_the_file(tmp_path_factory, content, heads, data):
    place, value = data.draw(st.sampled_from(heads)), data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.arrow"
    path.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
    with open(path, "rb") as stream:
        try:
            found = list(messages(stream))
        except (ValueError, EOFError):
            return
    assert all(0 <= message.start < message.stop <= len(content) for message in found)

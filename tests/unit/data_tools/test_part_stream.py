"""A part of a file is read whole, alone, and hashed on the way."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xxhash import xxh3_128_hexdigest

from data_tools import part_stream
from data_tools.inputs import Range, open_inputs
from data_tools.part_stream import PartStream, buffered, checksum_of_part
from megatron_glm.errors import DataError

CONTENT = b"\n".join(random.Random(0).randbytes(number % 90).replace(b"\n", b" ") for number in range(100))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("part") / "a.txt"
    path.write_bytes(CONTENT)
    return open_inputs([str(path)], line_documents=True)[0]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bounds=st.tuples(*[st.integers(0, len(CONTENT))] * 2).map(sorted),
    read_bytes=st.sampled_from([1, 7, 100, 1 << 20]),
)
def test_the_bytes_of_a_part_and_their_hash(file, monkeypatch, bounds, read_bytes):
    monkeypatch.setattr(part_stream, "READ_BYTES", read_bytes)
    start, stop = bounds
    with PartStream(Range(file, start, stop)) as stream:
        assert b"".join(buffered(stream).readlines()) == CONTENT[start:stop]
        assert stream.position == stop - start
        assert stream.checksum() == xxh3_128_hexdigest(CONTENT[start:stop])
    assert checksum_of_part(Range(file, start, stop)) == xxh3_128_hexdigest(CONTENT[start:stop])


def test_rows_are_hashed_by_the_bytes_that_hold_them(file):
    assert checksum_of_part(Range(file, 0, 3, (10, 200))) == xxh3_128_hexdigest(CONTENT[10:200])


def test_a_file_that_was_cut_is_told(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(CONTENT)
    (file,) = open_inputs([str(path)], line_documents=True)
    part = Range(file, 100, len(CONTENT))
    path.write_bytes(CONTENT[:150])
    with pytest.raises(DataError, match=rf"a\.txt: was cut while it was read, {len(CONTENT) - 150} bytes are missing"):
        checksum_of_part(part)

"""Arrays in a file: read as if they were in memory, and an error when the file has become another."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megatron_glm.data import file_array
from megatron_glm.data.file_array import FileArray, ReadOnlyFile
from megatron_glm.data.pair_format import bin_path, idx_path
from megatron_glm.data.shards import ShardSet
from megatron_glm.errors import DataError

REPOSITORY = Path(__file__).resolve().parents[3]
ENTRIES = np.random.default_rng(0).integers(0, 2**40, 3000)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(b"header" + ENTRIES.astype("<i8").tobytes() + b"tail")
    return path


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_entries_and_ranges_are_those_of_the_file(path, data):
    array = FileArray(ReadOnlyFile(path), 6, len(ENTRIES), "<i8")
    assert len(array) == len(ENTRIES)
    k = data.draw(st.integers(-len(ENTRIES), len(ENTRIES) - 1))
    assert array[k] == ENTRIES[k]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(ENTRIES) + 9)] * 2)))
    assert array.read(start, stop).tolist() == ENTRIES[start:stop].tolist()
    places = np.array(data.draw(st.lists(st.integers(0, len(ENTRIES) - 1))), np.int64)
    assert array.take(places).tolist() == ENTRIES[places].tolist()


def test_entries_outside_the_array_are_refused(path):
    array = FileArray(ReadOnlyFile(path), 6, 10, "<i8")
    for k in (10, -11):
        with pytest.raises(IndexError, match="outside an array of 10"):
            array[k]


def test_a_file_is_closed_with_the_last_that_reads_it(path):
    before = set(os.listdir("/proc/self/fd"))
    array = FileArray(ReadOnlyFile(path), 6, 10, "<i8")
    assert array[3] == ENTRIES[3]
    assert len(set(os.listdir("/proc/self/fd")) - before) == 1
    del array  # without a garbage collection: there is no cycle
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_long_read_that_the_system_cuts_is_continued(path, monkeypatch):
    whole = path.read_bytes()
    read = os.pread
    monkeypatch.setattr(file_array.os, "pread", lambda descriptor, size, start: read(descriptor, min(size, 7), start))
    assert ReadOnlyFile(path).read(3, 100) == whole[3:103]


def test_a_disk_that_fails_is_an_error_with_the_place(path, monkeypatch):
    file = ReadOnlyFile(path)

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(file_array.os, "pread", fail)
    with pytest.raises(DataError, match="numbers: cannot be read at byte 12: Input/output error"):
        file.read(12, 1)


@pytest.mark.parametrize("path_of", [bin_path, idx_path])
def test_a_file_cut_under_an_open_set_is_an_error_and_neither_a_crash_nor_other_tokens(tmp_path, write_corpus, path_of):
    # In a process of its own: a read beyond the end of a map would kill it.
    documents = [[k % 50_000] * 900 for k in range(40)]
    directory = write_corpus(tmp_path / "corpus", documents)
    program = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from pathlib import Path
from megatron_glm.data.shards import ShardSet
from megatron_glm.errors import DataError
shards = ShardSet(Path({str(directory)!r}), "train")
before = shards.tokens(0, 901)
path = Path({str(path_of(directory / "train" / "00001"))!r})
shards.tokens(shards.document_start(3), shards.document_start(4))  # the pair that is cut is open
with open(path, "r+b") as stream:
    stream.truncate(20)
assert before.tolist() == [0] * 900 + [50_001]
wrong = refused = 0
for k in range(40):
    try:
        ids = shards.tokens(shards.document_start(k), shards.document_start(k + 1)).tolist()
        wrong += ids != [k] * 900 + [50_001]
    except DataError as error:
        refused += 1
        assert f"{{path}}: ends at byte 20, but had" in str(error), error
print(wrong, refused)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    wrong, refused = map(int, done.stdout.split())
    assert wrong == 0
    assert refused == (3 if path_of is bin_path else 0)  # of the small index all was read already


def test_a_file_that_vanished_is_named_when_it_is_opened_again(tmp_path, write_corpus):
    directory = write_corpus(tmp_path / "corpus", [[k] for k in range(9)])
    shards = ShardSet(directory, "train")
    before = shards.tokens(0, 4)
    bin_path(directory / "train" / "00002").unlink()
    assert before.tolist() == [0, 50_001, 1, 50_001]
    with pytest.raises(DataError, match=r"00002\.bin: No such file"):
        shards.tokens(12, 18)


def test_arrays_outlive_the_set_they_come_from(tmp_path, write_corpus):
    directory = write_corpus(tmp_path / "corpus", [[k] for k in range(9)])
    shards = ShardSet(directory, "train")
    tokens = shards.tokens(0, 18)
    expected = tokens.tolist()
    del shards
    for file in (directory / "train").iterdir():
        file.write_bytes(b"")
    assert tokens.tolist() == expected
    assert tokens.flags.writeable

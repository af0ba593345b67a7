"""Many pairs become one that equals megatron-core's, in bounded memory, whole or not at all."""

import os
import shutil
import tracemalloc
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_tools import merge as merge_module
from data_tools.merge import main, merge
from data_tools.preprocess import main as preprocess
from megatron_glm.data.indexed import IndexedFile
from megatron_glm.data.indexed_writer import IndexedWriter
from megatron_glm.data.pair_format import bin_path, idx_path
from megatron_glm.data.prefixes import PrefixSet
from megatron_glm.data.shards import ShardSet
from megatron_glm.errors import DataError
from megatron_glm.files import Files

PARTS = [[[[1, 2, 3], [4]], []], [], [[], []], [[[5]], [[6, 7], [8]]]]
DOCUMENTS = st.lists(st.lists(st.lists(st.integers(0, 65_000), max_size=4), max_size=3), max_size=5)


def write(prefix, documents, dtype=np.uint16):
    with IndexedWriter(prefix, np.dtype(dtype)) as writer:
        for sequences in documents:
            writer.add_document(np.array(list(chain(*sequences)), np.int64), [len(s) for s in sequences])
    return prefix


def content(prefix):
    return bin_path(prefix).read_bytes(), idx_path(prefix).read_bytes()


@pytest.fixture
def parts(tmp_path):
    return [write(tmp_path / f"part_{k}", documents) for k, documents in enumerate(PARTS)]


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(DOCUMENTS, min_size=1, max_size=4), dtype=st.sampled_from([np.uint16, np.int32]))
def test_the_pair_equals_one_written_at_once(tmp_path_factory, parts, dtype):
    folder = tmp_path_factory.mktemp("merge")
    prefixes = [write(folder / f"{k}", documents, dtype) for k, documents in enumerate(parts)]
    merge(prefixes, folder / "merged")
    assert content(folder / "merged") == content(write(folder / "whole", list(chain(*parts)), dtype))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_the_pair_equals_megatron_core_s_own_merge(tmp_path, dtype):
    megatron = pytest.importorskip("megatron.core.datasets.indexed_dataset", exc_type=ImportError)
    filled = [documents for documents in PARTS if any(map(len, documents))]  # it cannot open an empty .bin
    prefixes = [write(tmp_path / f"{k}", documents, dtype) for k, documents in enumerate(filled)]
    builder = megatron.IndexedDatasetBuilder(str(bin_path(tmp_path / "theirs")), dtype=dtype)
    for prefix in prefixes:
        builder.add_index(str(prefix))
    builder.finalize(str(idx_path(tmp_path / "theirs")))
    merge(prefixes, tmp_path / "ours")
    assert content(tmp_path / "ours") == content(tmp_path / "theirs")


def test_narrow_ids_are_made_wide_where_others_are(tmp_path, capsys):
    narrow = write(tmp_path / "narrow", [[[1, 2]], [[65_000]]])
    wide = write(tmp_path / "wide", [[[70_000]]], np.int32)
    code = main(["--prefix", str(narrow), str(wide), "--output", str(tmp_path / "all")])
    assert code == 0
    file = IndexedFile(tmp_path / "all")
    assert (file.dtype, file.tokens(0, 4).tolist()) == (np.int32, [1, 2, 65_000, 70_000])
    file.check_structure()
    assert "the uint16 ids of 1 of the pairs were made int32" in capsys.readouterr().out


def test_offsets_of_more_than_two_gigabytes_do_not_wrap(tmp_path, monkeypatch):
    # Two sparse parts of 2**30 tokens in one sequence each; the ids themselves are not copied.
    for name in ("a", "b"):
        writer = IndexedWriter(tmp_path / name, np.dtype(np.uint16))
        writer._lengths.extend([2**30])
        writer._documents.extend([1])
        writer.close()
        os.truncate(bin_path(tmp_path / name), 2**31)
    monkeypatch.setattr(merge_module, "_ids", lambda prefixes: [])
    monkeypatch.setattr(merge_module, "_check_size", lambda stream, expected: stream.truncate(expected))
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    file = IndexedFile(tmp_path / "all")
    assert [file.document_start(k) for k in range(3)] == [0, 2**30, 2**31]
    file.check_structure()


def test_memory_does_not_grow_with_the_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(merge_module, "_BLOCK_TOKENS", 1 << 10)
    monkeypatch.setattr("megatron_glm.data.indexed._CHUNK", 1 << 10)
    part = write(tmp_path / "part", [[list(range(20))]] * 1000)

    def peak(count, attempt):
        tracemalloc.start()
        merge([part] * count, tmp_path / f"merged_{count}_{attempt}")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    # Twice, since threads that earlier tests have left are counted too.
    few, many = (min(peak(count, attempt) for attempt in range(2)) for count in (20, 200))
    assert IndexedFile(tmp_path / "merged_200_0").num_documents == 200_000
    assert many < few + 200_000  # bytes; the parts hold 8 MB of ids


def test_a_directory_of_ours_becomes_a_pair_that_is_read_as_prefixes(tmp_path, prose, tokenizer_directory, capsys):
    text = prose(tmp_path / "text.txt", 300)
    argv = ["--input", str(text), "--tokenizer", str(tokenizer_directory), "--output", str(tmp_path / "data")]
    assert preprocess([*argv, "--held-out", "0.2", "--workers", "1", "--shard-tokens", "3000"]) == 0
    capsys.readouterr()
    for split in ("train", "held_out"):
        output = tmp_path / "merged" / split
        assert main([str(tmp_path / "data"), "--split", split, "--output", str(output)]) == 0
        shards = ShardSet(tmp_path / "data", split)
        eos, num_ids = shards.manifest["tokenizer"]["special"]["eos"], shards.manifest["tokenizer"]["vocab_size"]
        merged = PrefixSet([str(output)], num_ids=num_ids, eos=eos)
        assert merged.ends_with_eos
        assert merged.num_documents == shards.num_documents
        whole = shards.tokens(0, shards.num_tokens)
        assert np.array_equal(merged.tokens(0, merged.num_tokens), whole)
        line = capsys.readouterr().out
        assert line.startswith(f"{output}: {shards.num_documents:,} documents, {shards.num_tokens:,} tokens (uint16), ")
        count = len(shards.shard_tokens) - 1
        assert f"{count} shard{'s' * (count > 1)}, tokenizer {shards.manifest['tokenizer']['hash'][:12]}" in line


@pytest.mark.parametrize("path", [bin_path, idx_path])
def test_an_existing_file_is_never_overwritten(tmp_path, parts, path, capsys):
    path(tmp_path / "all").write_bytes(b"mine")
    code = main(["--prefix", *map(str, parts), "--output", str(tmp_path / "all")])
    assert code == 2
    assert f"'{path(tmp_path / 'all')}' exists; remove it or give another prefix" in capsys.readouterr().err
    assert path(tmp_path / "all").read_bytes() == b"mine"
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


class FailingFiles(Files):
    """Counts the operations, and fails at one of them."""

    def __init__(self, fails_at=None):
        self.fails_at = fails_at
        self.count = 0


def _counted(name):
    def operation(self, *args):
        self.count += 1
        if self.count - 1 == self.fails_at:
            raise OSError(28, "No space left on device")
        return getattr(Files, name)(self, *args)

    return operation


for _name in ("open", "write", "sync", "sync_directory", "rename"):
    setattr(FailingFiles, _name, _counted(_name))


def test_a_failure_at_any_step_leaves_nothing(tmp_path, parts):
    before = set(os.listdir(tmp_path))
    counted = FailingFiles()
    merge(parts, tmp_path / "counted", files=counted)
    whole = content(tmp_path / "counted")
    for path in (bin_path, idx_path):
        path(tmp_path / "counted").unlink()
    for k in range(counted.count):
        with pytest.raises(DataError, match="the disk is full, nothing is left there"):
            merge(parts, tmp_path / "all", files=FailingFiles(k))
        if idx_path(tmp_path / "all").exists():  # it failed when both were published
            assert content(tmp_path / "all") == whole
            for path in (bin_path, idx_path):
                path(tmp_path / "all").unlink()
        assert set(os.listdir(tmp_path)) == before


def test_a_merge_that_was_killed_can_be_done_again(tmp_path, parts):
    bin_path(tmp_path / "all").write_bytes(b"of the killed one")
    (tmp_path / ".all.idx.tmp").write_bytes(b"half")
    merge(parts, tmp_path / "all")
    assert IndexedFile(tmp_path / "all").num_documents == 6
    assert not (tmp_path / ".all.idx.tmp").exists()


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(tmp_path, parts, monkeypatch):
    merge(parts, tmp_path / "whole")
    size = sum(path(tmp_path / "whole").stat().st_size for path in (bin_path, idx_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(DataError, match=f"{size} bytes are needed, 10 bytes are free .*make room"):
        merge(parts, tmp_path / "all")
    assert not bin_path(tmp_path / "all").exists()


def test_a_damaged_part_is_named(tmp_path, parts):
    with open(idx_path(parts[0]), "r+b") as stream:
        stream.seek(34)
        stream.write(b"\x07")
    with pytest.raises(DataError, match=r"part_0\.idx: damaged: sequence 1 starts at byte 6"):
        merge(parts, tmp_path / "all")
    assert not bin_path(tmp_path / "all").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "give either a data directory, or --prefix and existing pairs"),
        (["data", "--prefix", "a"], "give either a data directory, or --prefix and existing pairs"),
        (["--prefix", "nothing*"], "--prefix: 'nothing*': no .idx file has such a name"),
        (["nowhere"], "no shards in 'nowhere'"),
        (["data", "--output", "."], "--output: '.' must name a file, without the extensions .bin and .idx"),
        (["data", "--output", "a/b.idx"], "--output: 'a/b.idx' must name a file, without"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, argv, message, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--output", "all", *argv]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_a_long_merge_says_how_far_it_is(tmp_path, parts, capsys, monkeypatch):
    monkeypatch.setattr(merge_module, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(merge_module, "_BLOCK_TOKENS", 2)
    assert main(["--prefix", *map(str, parts), "--output", str(tmp_path / "all")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("merging 25%  ")
    assert lines[-1].startswith("merging 100%  ")
    assert lines[-1].endswith("eta 0 s")

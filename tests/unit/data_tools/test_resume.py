"""An interrupted preprocess goes on where it was, and the result is that of an undisturbed run."""

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import time

import pytest

import data_tools.dedupe
import data_tools.outcome
import data_tools.preprocess
import data_tools.tokenizing
import data_tools.units
import data_tools.workers
from data_tools.preprocess import Request, preprocess
from data_tools.split_writer import SplitWriter
from megatron_glm.errors import DataError

UNIT_BYTES = 2500
OPTIONS = {"held_out": 0.1, "shard_tokens": 1500, "unit_bytes": UNIT_BYTES, "workers": 1}


class Killed(BaseException):
    """An end that no part of the system catches."""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """So that a unit is more than one step."""
    monkeypatch.setattr(data_tools.units, "_BATCH_DOCUMENTS", 3)


@pytest.fixture
def corpus(tmp_path, prose):
    """Two files of five units in all."""
    return [prose(tmp_path / "a.txt", 35, seed=1), prose(tmp_path / "b.txt", 25, seed=2)]


@pytest.fixture
def request_of(tmp_path, corpus, tokenizer_directory):
    """A request that writes `tmp_path/out/<name>`."""

    def make(name="data", **changes):
        given = {"inputs": [str(path) for path in corpus], "tokenizer": str(tokenizer_directory), **OPTIONS}
        return Request(output=tmp_path / "out" / name, **(given | changes))

    return make


@pytest.fixture
def expected(tmp_path, request_of):
    """Every file of an undisturbed run."""
    preprocess(request_of("undisturbed"))
    files = tree(tmp_path / "out" / "undisturbed")
    shutil.rmtree(tmp_path / "out")
    return files


@pytest.fixture
def tokenized(monkeypatch):
    """The numbers of the units that were tokenized, not only verified."""
    numbers, tokenize = [], data_tools.tokenizing._tokenize

    def count(unit, *args):
        result = tokenize(unit, *args)
        numbers.append(unit.number)
        return result

    monkeypatch.setattr(data_tools.tokenizing, "_tokenize", count)
    return numbers


def tree(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def fail_at(monkeypatch, owner, name, number, error):
    """Let a function raise from its call `number` (from 0) on; returns the calls counted so far, a list of one."""
    function, calls = getattr(owner, name), [0]

    def call(*args, **kwargs):
        calls[0] += 1
        if calls[0] > number:
            raise error
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.fixture
def interrupted(tmp_path, request_of, monkeypatch, tokenized):
    """A run that was cut short after three units."""
    with monkeypatch.context() as patch:
        fail_at(patch, data_tools.tokenizing, "DocumentReader", 3, Killed())
        with pytest.raises(Killed):
            preprocess(request_of())
    assert len(tokenized) == 3
    assert not (tmp_path / "out" / "data").exists()
    tokenized.clear()


@pytest.mark.parametrize(
    ("owner", "name", "stride"),
    [(os, "rename", 7), (os, "replace", 7), (data_tools.tokenizing, "DocumentReader", 1)],
    ids=["rename", "publish", "unit"],
)
def test_a_run_that_ends_at_any_step_is_continued_to_the_same_bytes(
    tmp_path, request_of, expected, monkeypatch, owner, name, stride
):
    number = 0
    while True:
        with monkeypatch.context() as patch:
            calls = fail_at(patch, owner, name, number, Killed())
            try:
                preprocess(request_of())
            except Killed:
                assert not (tmp_path / "out" / "data" / "manifest.json").exists()
            if calls[0] <= number:
                break
        preprocess(request_of())
        assert tree(tmp_path / "out") == {f"data/{path}": content for path, content in expected.items()}
        shutil.rmtree(tmp_path / "out")
        number += stride
    assert number >= 5


def test_a_run_that_ends_just_before_its_output_appears_is_continued(tmp_path, request_of, expected, monkeypatch):
    with monkeypatch.context() as patch:
        fail_at(patch, data_tools.outcome, "Outcome", 0, Killed())
        with pytest.raises(Killed):
            preprocess(request_of())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".data.tmp", ".data.units"]
    assert preprocess(request_of()).new.tokens == 0
    assert tree(tmp_path / "out") == {f"data/{path}": content for path, content in expected.items()}


def test_what_a_run_that_ends_just_after_leaves_is_removed_by_the_next(tmp_path, request_of, expected, monkeypatch):
    with monkeypatch.context() as patch:
        fail_at(patch, shutil, "rmtree", 0, Killed())
        with pytest.raises(Killed):
            preprocess(request_of())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".data.units", "data"]
    with pytest.raises(DataError, match="exists already"):
        preprocess(request_of())
    assert tree(tmp_path / "out") == {f"data/{path}": content for path, content in expected.items()}


def test_finished_units_are_not_done_again(request_of, interrupted, tokenized, capsys):
    outcome = preprocess(request_of())
    assert len(tokenized) == 2
    assert 0 < outcome.new.text_bytes < outcome.text_bytes
    assert capsys.readouterr().err.startswith("continuing: 3 of 5 units are finished")


def test_a_unit_that_was_cut_in_the_middle_is_done_again(tmp_path, request_of, expected, monkeypatch):
    for number in (1, 4, 8):
        with monkeypatch.context() as patch:
            fail_at(patch, SplitWriter, "add_documents", number, Killed())
            with pytest.raises(Killed):
                preprocess(request_of())
    preprocess(request_of())
    assert tree(tmp_path / "out" / "data") == expected


def test_a_full_disk_loses_nothing(tmp_path, request_of, expected, monkeypatch, tokenized):
    with monkeypatch.context() as patch:
        fail_at(patch, SplitWriter, "add_documents", 8, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        with pytest.raises(DataError, match=r"No space left.* is kept, continue with the same command"):
            preprocess(request_of())
    done = len(tokenized)
    assert done > 0
    preprocess(request_of())
    assert len(tokenized) == 5
    assert tree(tmp_path / "out" / "data") == expected


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "record", "origins"])
def test_a_damaged_shard_is_noticed_and_written_again(tmp_path, request_of, expected, interrupted, tokenized, damage):
    units = tmp_path / "out" / ".data.tmp" / "units"
    shard = sorted(units.glob("*/train/*.bin"))[0]
    content = bytearray(shard.read_bytes())
    content[7] ^= 1
    match damage:
        case "flip":
            shard.write_bytes(content)
        case "cut":
            shard.write_bytes(content[:-2])
        case "remove":
            shard.unlink()
        case "origins":
            origins = shard.with_suffix(".origins")
            origins.write_bytes(origins.read_bytes()[::-1])
        case "record":
            (shard.parents[1] / "result.json").write_text("{")
    preprocess(request_of())
    assert len(tokenized) == 3
    assert tree(tmp_path / "out" / "data") == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"held_out": 0.2}, r"--held-out: is 0\.2, it was 0\.1"),
        ({"shard_tokens": 500}, "--shard-tokens: is 500, it was 1500"),
        ({"text_key": "body"}, "--text-key: is body, it was text"),
        ({"min_tokens": 3}, "--min-tokens: is 3, it was 0"),
        ({"malformed": "skip"}, "--malformed: is skip, it was fail"),
        ({"dedupe": "exact"}, "--dedupe: is exact, it was none"),
        ({"sentences": True}, "--sentences: is True, it was False"),
        ({"unit_bytes": 3000}, "is cut elsewhere"),
    ],
)
def test_other_arguments_are_refused_with_the_difference(tmp_path, request_of, interrupted, changes, message):
    before = tree(tmp_path / "out")
    with pytest.raises(DataError, match=f"{message}.*--restart"):
        preprocess(request_of(**changes))
    assert tree(tmp_path / "out") == before
    preprocess(request_of(**changes, restart=True))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["data"]


def test_other_inputs_are_refused_with_the_difference(request_of, corpus, interrupted):
    first, second = map(str, corpus)
    with pytest.raises(DataError, match=r"--input: file 1 is '.*b.txt', it was '.*a.txt'"):
        preprocess(request_of(inputs=[second, first]))
    with pytest.raises(DataError, match="--input: 1 files are given, there were 2"):
        preprocess(request_of(inputs=[first]))
    corpus[1].write_text(corpus[1].read_text() + "\n\nmore")
    with pytest.raises(DataError, match=r"'.*b.txt' has \d+ bytes, it had \d+"):
        preprocess(request_of())


def test_an_input_of_the_same_size_and_time_but_other_text_is_refused(request_of, corpus, interrupted):
    for path in corpus:
        times = path.stat()
        path.write_text(path.read_text().replace("river", "rover"))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(DataError, match=r"txt' was changed since a part of it was read; .*--restart"):
        preprocess(request_of())


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (data_tools.units, "plan_units"),  # of a damaged table
        (data_tools.workers, "count_workers"),  # of MPI
        (data_tools.preprocess, "_proven_engine"),  # whose sample has another key
    ],
    ids=["plan", "workers", "engine"],
)
def test_a_mistake_before_the_work_goes_on_takes_nothing_away(
    tmp_path, request_of, expected, interrupted, tokenized, monkeypatch, owner, name
):
    with monkeypatch.context() as patch:
        fail_at(patch, owner, name, 0, DataError("a mistake"))
        for restart in (False, True):
            with pytest.raises(DataError, match="a mistake"):
                preprocess(request_of(restart=restart))
    preprocess(request_of())
    assert len(tokenized) == 2
    assert tree(tmp_path / "out" / "data") == expected


def test_a_number_of_workers_is_no_other_argument(tmp_path, request_of, expected, interrupted):
    preprocess(request_of(workers=2))
    assert tree(tmp_path / "out" / "data") == expected


def test_a_bad_input_leaves_nothing_to_continue(tmp_path, request_of, corpus):
    corpus[1].write_bytes(b"one\n\nt\xffo")
    with pytest.raises(DataError, match="invalid UTF-8"):
        preprocess(request_of())
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture
def dedupe_options(corpus):
    """Options of a run that finds duplicates, of which there are now some within and between units."""
    first, second = (path.read_text() for path in corpus)
    corpus[0].write_text(first + "\n\n" + first[: len(first) // 2] + "\n\nTwice" * 2)
    corpus[1].write_text(second + "\n\n" + first)
    return {"dedupe": "exact", "sort_records": 8, "malformed": "quarantine"}


@pytest.fixture
def expected_unique(tmp_path, request_of, dedupe_options):
    """Every file of an undisturbed run with those options."""
    preprocess(request_of("undisturbed", **dedupe_options))
    files = tree(tmp_path / "out" / "undisturbed")
    shutil.rmtree(tmp_path / "out")
    return files


@pytest.mark.parametrize(
    ("owner", "name", "stride"),
    [(data_tools.dedupe, "DocumentReader", 3), (data_tools.dedupe, "_first_of_equals", 11), (os, "rename", 19)],
    ids=["hash", "sort", "rename"],
)
def test_a_run_that_ends_while_it_looks_for_duplicates_is_continued(
    tmp_path, request_of, dedupe_options, expected_unique, monkeypatch, owner, name, stride
):
    number = 1
    while True:
        with monkeypatch.context() as patch:
            calls = fail_at(patch, owner, name, number, Killed())
            try:
                preprocess(request_of(**dedupe_options))
            except Killed:
                assert not (tmp_path / "out" / "data" / "manifest.json").exists()
            if calls[0] <= number:
                break
        preprocess(request_of(**dedupe_options))
        assert tree(tmp_path / "out") == {f"data/{path}": content for path, content in expected_unique.items()}
        shutil.rmtree(tmp_path / "out")
        number += stride
    assert number >= 6


@pytest.fixture
def interrupted_unique(request_of, dedupe_options, monkeypatch, tokenized):
    """A run that has found its duplicates and was cut short after three units."""
    with monkeypatch.context() as patch:
        fail_at(patch, data_tools.tokenizing, "DocumentReader", 3, Killed())
        with pytest.raises(Killed):
            preprocess(request_of(**dedupe_options))
    assert len(tokenized) == 3
    tokenized.clear()


@pytest.mark.parametrize("name", ["runs", "repeats", "result.json"])
def test_hashes_are_verified_and_not_trusted(
    tmp_path, request_of, dedupe_options, expected_unique, interrupted_unique, monkeypatch, name
):
    hashes = tmp_path / "out" / ".data.tmp" / "units" / "hashes"
    path = max(hashes.glob(f"*/{name}"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[1] ^= 1
    path.write_bytes(content)
    hashed, hash_again = [], data_tools.dedupe._hash
    monkeypatch.setattr(data_tools.dedupe, "_hash", lambda unit, *a: hashed.append(unit) or hash_again(unit, *a))
    preprocess(request_of(**dedupe_options))
    assert [f"{unit.number:06d}" for unit in hashed] == [path.parent.name]
    assert tree(tmp_path / "out" / "data") == expected_unique


def test_a_unit_with_other_duplicates_than_recorded_is_done_again(
    tmp_path, request_of, dedupe_options, expected_unique, interrupted_unique, tokenized
):
    (path, *_) = sorted((tmp_path / "out" / ".data.tmp" / "units").glob("0*/result.json"))
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"duplicates_sha256": "0" * 64}))
    preprocess(request_of(**dedupe_options))
    assert int(path.parent.name) in tokenized
    assert tree(tmp_path / "out" / "data") == expected_unique


def test_an_input_changed_since_it_was_hashed_is_refused(request_of, dedupe_options, corpus, interrupted_unique):
    corpus[1].write_text(corpus[1].read_text().replace("river", "rover"))
    with pytest.raises(DataError, match=r"b\.txt' was changed since a part of it was read; .*--restart"):
        preprocess(request_of(**dedupe_options))


@pytest.mark.distributed
@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(tmp_path, request_of, expected, seed):
    draw, kills = random.Random(seed), 0
    while True:
        process = multiprocessing.get_context("fork").Process(target=preprocess, args=(request_of(),))
        process.start()
        # Kills come later and later, so that the run is cut in every phase and ends at last.
        time.sleep(draw.uniform(0.0, 0.01 * (kills + 1)))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        if (tmp_path / "out" / "data").exists():
            break
        kills += 1
    assert kills > 0
    if process.exitcode != 0:  # killed just after the output appeared: what it still had to remove is no harm
        shutil.rmtree(tmp_path / "out" / ".data.units", ignore_errors=True)
    assert tree(tmp_path / "out" / "data") == expected

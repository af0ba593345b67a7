"""Of equal documents the first stays, whatever the units, the memory and the number of workers."""

import json
import random
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_tools.dedupe import duplicates_of, find_duplicates, hash_job, hash_unit, num_buckets
from data_tools.inputs import open_inputs
from data_tools.preprocess import Request, preprocess
from data_tools.tokenizing import are_held_out
from data_tools.units import Job, plan_units
from megatron_glm.data.manifest import read_manifest
from megatron_glm.data.shards import ShardSet
from megatron_glm.tokenizer.loading import load_tokenizer

per_example = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def found(tmp_path_factory, corpora, unit_bytes, sort_records):
    """The numbers of the duplicates in each unit, and the units' documents."""
    tmp_path = tmp_path_factory.mktemp("hashes")
    paths = [write(tmp_path / f"{number}.jsonl", texts) for number, texts in enumerate(corpora)]
    units = plan_units(open_inputs(paths, line_documents=False), unit_bytes)
    job = Job(tmp_path, "", "", "text", 0.0, 100, dedupe="exact", sort_records=sort_records)
    hash_job(job).directory.mkdir()
    results = [hash_unit(unit, hash_job(job)) for unit in units]
    assert all(length <= sort_records for result in results for length in result.runs)
    buckets = num_buckets(results, sort_records)
    for bucket in range(buckets):
        runs = [(unit, result.runs) for unit, result in zip(units, results, strict=True)]
        find_duplicates(bucket, buckets, job, runs)
    return units, [duplicates_of(unit, job).tolist() for unit in units], buckets


TEXTS = st.lists(st.lists(st.text("ab ", max_size=3), min_size=1, max_size=30), min_size=1, max_size=4)


@per_example
@given(corpora=TEXTS, unit_bytes=st.integers(20, 400), sort_records=st.integers(1, 40))
def test_what_is_dropped_is_what_a_set_has_seen(tmp_path_factory, corpora, unit_bytes, sort_records):
    from data_tools.documents import DocumentReader

    units, duplicates, _ = found(tmp_path_factory, corpora, unit_bytes, sort_records)
    seen, expected = set(), []
    for unit in units:
        dropped = []
        for number, (text, _) in enumerate(DocumentReader(unit.part, "text")):
            if text in seen:
                dropped.append(number)
            if text.strip():
                seen.add(text)
        expected.append(dropped)
    assert duplicates == expected


def test_a_document_that_fills_the_corpus_fills_no_memory(tmp_path_factory):
    corpora = [["the same"] * 500 + [f"{number}" for number in range(100)]] * 3
    _, duplicates, buckets = found(tmp_path_factory, corpora, 10**9, 64)
    assert [len(numbers) for numbers in duplicates] == [499, 600, 600]
    assert buckets <= 10  # one record a run is left of the 1500


@pytest.fixture
def repeats(tmp_path):
    """Two files of many repeated documents, one with white space and malformed lines between."""
    draw = random.Random(3)
    texts = [f"document {draw.randrange(60)} of the river" for _ in range(300)] + ["", "  "]
    first, second = write(tmp_path / "a.jsonl", texts[:150]), write(tmp_path / "b.jsonl", texts[150:])
    lines = (tmp_path / "b.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "b.jsonl").write_text("".join([*lines[:20], '{"text": 1}\n', *lines[20:70], "{\n", *lines[70:]]))
    return [first, second], texts


@pytest.fixture
def run(tmp_path, repeats, tokenizer_directory):
    """Preprocess the repeats into `tmp_path/<name>`."""

    def run(name, **options):
        given = {"held_out": 0.2, "workers": 1, "unit_bytes": 1500, "sort_records": 16, "shard_tokens": 300}
        given |= {"dedupe": "exact", "malformed": "skip"} | options
        preprocess(Request(repeats[0], str(tokenizer_directory), tmp_path / name, **given))
        return tmp_path / name

    return run


def texts_of(directory, split, tokenizer):
    shards = ShardSet(directory, split)
    starts = [shards.document_start(k) for k in range(shards.num_documents + 1)]
    return [tokenizer.decode(shards.tokens(start, stop - 1)) for start, stop in pairwise(starts)]


def test_the_first_of_equal_documents_stays_and_the_others_are_counted(run, repeats, tokenizer_directory):
    directory, tokenizer = run("data"), load_tokenizer(tokenizer_directory)
    unique = [text for text in dict.fromkeys(repeats[1]) if text.strip()]
    train, held_out = (texts_of(directory, split, tokenizer) for split in ("train", "held_out"))
    assert train == [text for text in unique if not are_held_out([text.encode()], 0.2)[0]]
    assert held_out == [text for text in unique if are_held_out([text.encode()], 0.2)[0]]
    records = read_manifest(directory).inputs
    assert sum(record.dropped.get("duplicate", 0) for record in records) == 300 - len(unique)
    assert records[1].dropped["empty"] == 2
    assert records[1].dropped["malformed: broken JSON"] == 1


def test_without_the_option_all_stay(run, tokenizer_directory):
    manifest = read_manifest(run("data", dedupe="none"))
    assert sum(record.documents_out for record in manifest.inputs) == 300


def test_the_output_is_the_same_for_any_units_of_work_memory_and_workers(run):
    def tree(directory):
        return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}

    expected = tree(run("data"))
    assert tree(run("memory", sort_records=1000)) == expected
    assert tree(run("workers", workers=3)) == expected
    assert any(name.startswith("train/0000") for name in expected)


def test_hashes_are_sorted_in_runs_of_bounded_size(tmp_path_factory):
    corpora = [[str(number) for number in range(1000)]]
    units, duplicates, buckets = found(tmp_path_factory, corpora, 4000, 100)
    assert not any(duplicates)
    assert buckets == 10
    assert len(units) > 2

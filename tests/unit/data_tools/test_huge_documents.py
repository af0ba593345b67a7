"""A document of any size takes time in proportion to its size."""

import gzip
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

from data_tools import dedupe, tokenizing
from data_tools.inputs import open_inputs
from data_tools.units import Job, plan_units

SMALL, FACTOR = 2_000_000, 4


class FreeTokenizer:
    """Costs nothing: a token for every fourth character."""

    vocab_size = 1000
    special = SimpleNamespace(eos=7)

    def encode_batch(self, texts):
        return [np.full(len(text) // 4, 5, np.int32) for text in texts]


WRITERS = {
    "line.txt": lambda text: text.replace("\n", " ").encode(),
    "paragraph.txt": lambda text: text.encode(),
    "a.jsonl": lambda text: json.dumps({"text": text}).encode() + b"\n",
    "a.jsonl.gz": lambda text: gzip.compress(json.dumps({"text": text}).encode(), 1),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("phase", ["tokenize", "hash"])
def test_four_times_the_document_takes_less_than_eight_times_as_long(tmp_path, monkeypatch, name, phase):
    monkeypatch.setattr(tokenizing, "_tokenizer", lambda *args: FreeTokenizer())

    def seconds(characters, attempt):
        directory = tmp_path / f"{characters}-{attempt}"
        directory.mkdir()
        (directory / name).write_bytes(WRITERS[name]("the river runs slowly\n" * (characters // 22)))
        (unit,) = plan_units(open_inputs([str(directory / name)], line_documents=False), 1000)
        job = Job(directory, "", "", "text", 0.01, 1000)
        start = time.process_time()
        if phase == "tokenize":
            result = tokenizing.run_unit(unit, job)
            assert [shard.documents for shards in result.shards.values() for shard in shards] == [1]
        else:
            assert dedupe.hash_unit(unit, job).runs == [1]
        return time.process_time() - start

    large, small = (min(seconds(size, attempt) for attempt in range(3)) for size in (FACTOR * SMALL, SMALL))
    assert large < 2 * FACTOR * small

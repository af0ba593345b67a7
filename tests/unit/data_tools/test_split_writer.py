"""Documents written in batches give the files that documents written one by one give."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_tools.split_writer import SplitWriter
from megatron_glm.data.indexed_writer import IndexedWriter
from megatron_glm.data.provenance import origins_path
from megatron_glm.errors import DataError
from megatron_glm.files import Files

UINT16 = np.dtype(np.uint16)
# Documents as the lengths of their sequences.
DOCUMENTS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=15)


def written(documents, batch, directory, shard_tokens):
    """The shards of documents that come in batches."""
    writer = SplitWriter(directory, UINT16, 1000, shard_tokens, 3, Files())
    ids = np.arange(sum(map(sum, documents)), dtype=np.int32) % 1000
    token = 0
    for first in range(0, len(documents), batch):
        part = documents[first : first + batch]
        lengths = np.array([length for document in part for length in document])
        counts = np.array([len(document) for document in part])
        places = np.arange(first, first + len(part)) * 10
        writer.add_documents(ids[token : token + lengths.sum()], lengths, counts, places)
        token += lengths.sum()
    assert writer.num_tokens == token
    return writer.close()


def write_one_by_one(documents, directory, shard_tokens):
    """The reference: a new shard where a document would make the old one too long."""
    shards, size = [[]], 0
    for number, document in enumerate(documents):
        if shards[-1] and size + sum(document) > shard_tokens:
            shards.append([])
            size = 0
        shards[-1].append((number, document))
        size += sum(document)
    token = 0
    for number, shard in enumerate(shards if documents else []):
        prefix = directory / f"{number:05d}"
        with IndexedWriter(prefix, UINT16) as writer:
            for _, document in shard:
                writer.add_document(np.arange(token, token + sum(document)) % 1000, document)
                token += sum(document)
        np.array([place * 10 for place, _ in shard], "<i8").tofile(origins_path(prefix))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=DOCUMENTS, batch=st.integers(1, 12), shard_tokens=st.integers(5, 60))
def test_batches_are_written_as_single_documents_are(tmp_path_factory, documents, batch, shard_tokens):
    ours, theirs = tmp_path_factory.mktemp("batches"), tmp_path_factory.mktemp("single")
    shards = written(documents, batch, ours, shard_tokens)
    write_one_by_one(documents, theirs, shard_tokens)
    assert {path.name: path.read_bytes() for path in ours.iterdir()} == {
        path.name: path.read_bytes() for path in theirs.iterdir()
    }
    assert sum(shard.documents for shard in shards) == len(documents)
    assert all(shard.input == 3 and shard.origins_bytes == 8 * shard.documents for shard in shards)
    assert all(shard.tokens <= shard_tokens or shard.documents == 1 for shard in shards if shard.tokens)
    for shard in shards:
        places = np.fromfile(origins_path(ours / shard.name), "<i8")
        assert all(before < after for before, after in pairwise(places))


def test_an_id_outside_the_vocabulary_is_named_by_its_document(tmp_path):
    writer = SplitWriter(tmp_path, UINT16, 10, 100, 0, Files())
    with pytest.raises(DataError, match=r"00000: document 2 holds id 10, ids must be 0 … 9"):
        writer.add_documents(np.array([1, 2, 3, 9, 10]), np.array([2, 2, 1]), np.array([1, 1, 1]), np.arange(3))

"""What the writer of a pair refuses; what it writes is compared in test_indexed.py."""

import numpy as np
import pytest

from megatron_glm.data.indexed_writer import IndexedWriter
from megatron_glm.errors import DataError

UINT16 = np.dtype(np.uint16)


@pytest.mark.parametrize(
    ("dtype", "bad"),
    [(np.uint16, 100), (np.int32, -1), (np.int32, 65_536 + 5), (np.int64, -1), (np.uint64, 2**63)],
)
def test_ids_outside_the_vocabulary_are_refused_and_nothing_is_left(tmp_path, dtype, bad):
    def write_both():
        with IndexedWriter(tmp_path / "pair", UINT16, vocab_size=100) as writer:
            writer.add_document(np.array([99]))
            writer.add_document(np.array([5, bad], dtype))

    with pytest.raises(DataError, match=f"document 1 holds id {bad}, ids must be 0 … 99"):
        write_both()
    assert list(tmp_path.iterdir()) == []


def test_ids_beyond_the_type_are_refused_rather_than_wrapped(tmp_path):
    with pytest.raises(DataError, match="70000"), IndexedWriter(tmp_path / "pair", UINT16) as writer:
        writer.add_document(np.array([70_000]))


def test_lengths_must_tile_the_document(tmp_path):
    with pytest.raises(ValueError, match="do not tile"), IndexedWriter(tmp_path / "pair", UINT16) as writer:
        writer.add_document(np.array([1, 2, 3]), [1, 1])


def test_a_sequence_too_long_for_the_format_is_refused(tmp_path):
    huge = np.broadcast_to(np.uint16(0), 2**31)  # no memory behind it
    with pytest.raises(DataError, match="at most 2147483647"), IndexedWriter(tmp_path / "pair", UINT16) as writer:
        writer.add_document(huge)


@pytest.mark.parametrize(
    ("lengths", "counts", "message"),
    [([2, 2], [1, 1], "do not tile 3 tokens"), ([2, -1, 2], [3], "do not tile"), ([2, 1], [1], "there are 2")],
)
def test_lengths_and_counts_must_tile_the_documents(tmp_path, lengths, counts, message):
    with pytest.raises(ValueError, match=message), IndexedWriter(tmp_path / "pair", UINT16) as writer:
        writer.add_documents(np.array([1, 2, 3]), np.array(lengths), np.array(counts))


def test_a_sequence_too_long_among_many_is_refused_by_its_document(tmp_path):
    huge = np.broadcast_to(np.uint16(0), 2**31 + 1)
    with pytest.raises(DataError, match="document 1 has a sequence"), IndexedWriter(tmp_path / "pair", UINT16) as w:
        w.add_documents(huge, np.array([1, 2**31]), np.array([1, 1]))

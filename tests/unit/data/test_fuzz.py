"""Damaged pairs are refused in one line, or read as they stand."""

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.data.indexed import IndexedFile
from megatron_glm.data.indexed_writer import IndexedWriter
from megatron_glm.data.pair_format import DTYPES, HEADER, MAGIC, VERSION, bin_path, idx_path
from megatron_glm.errors import DataError
from tests.damage import damaged
from tests.fuzzing import bounded, fuzz, fuzz_test

EOS, NUM_IDS = 50_001, 50_008  # of the fixture `write_corpus`
DOCUMENTS = [[1, 2, 3, EOS], [EOS], [4, 5, EOS], [6, EOS], [7, 8, 9, 10, 11, EOS]]


def documents_of(idx, data):
    """A pair as the format reads, without a word about what is wrong: the documents, or None where there are none."""
    try:
        magic, version, code, sequences, entries = HEADER.unpack(idx[: HEADER.size])
        dtype = DTYPES[code]
        lengths = np.frombuffer(idx, "<i4", sequences, HEADER.size).astype(np.int64)
        offsets = np.frombuffer(idx, "<i8", sequences, HEADER.size + 4 * sequences)
        bounds = np.frombuffer(idx, "<i8", entries, HEADER.size + 12 * sequences)
        ids = np.frombuffer(data, dtype).astype(np.int64)
    except (ValueError, KeyError, OverflowError, struct.error):
        return None
    starts = np.concatenate(([0], np.cumsum(lengths)))
    whole = (
        (magic, version) == (MAGIC, VERSION)
        and len(idx) == HEADER.size + 12 * sequences + 8 * entries
        and (lengths >= 0).all()
        and np.array_equal(offsets, starts[:-1] * dtype.itemsize)
        and starts[-1] == len(ids)
        and entries
        and bounds[0] == 0
        and bounds[-1] == sequences
        and all(a <= b for a, b in pairwise(bounds.tolist()))
    )
    return [ids[starts[a] : starts[b]].tolist() for a, b in pairwise(bounds.tolist())] if whole else None


@fuzz_test
@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_a_damaged_pair_is_refused_or_read_as_it_stands_by_fuzz(tmp_path, dtype, examples):
    prefix = tmp_path / "pair"
    with IndexedWriter(prefix, np.dtype(dtype)) as writer:
        for document in DOCUMENTS:
            writer.add_document(np.array(document), [1] * len(document) if len(document) == 4 else None)
    whole = {"idx": idx_path(prefix).read_bytes(), "bin": bin_path(prefix).read_bytes()}

    @fuzz(examples)
    @given(idx=st.just(whole["idx"]) | damaged(whole["idx"]), data=st.just(whole["bin"]) | damaged(whole["bin"]))
    def holds(idx, data):
        idx_path(prefix).write_bytes(idx)
        bin_path(prefix).write_bytes(data)
        expected = documents_of(idx, data)
        with bounded():
            try:
                file = IndexedFile(prefix)
                file.check()
                starts = [file.document_start(k) for k in range(file.num_documents + 1)]
                found = [file.tokens(a, b).tolist() for a, b in pairwise(starts)]
                assert found == expected
                assert all(starts[file.find_document(t)] <= t for t in range(file.num_tokens))
            except DataError:
                assert expected is None or any(not 0 <= id < 2**31 for document in expected for id in document)

    holds()


@fuzz_test
def test_a_pair_that_nobody_has_checked_gives_ids_or_an_error_by_fuzz(tmp_path, examples):
    prefix = tmp_path / "pair"
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        for document in DOCUMENTS:
            writer.add_document(np.array(document), [1] * len(document))
    idx = idx_path(prefix).read_bytes()

    @fuzz(examples)
    @given(content=damaged(idx), data=st.data())
    def holds(content, data):
        idx_path(prefix).write_bytes(content)
        with bounded():
            try:
                file = IndexedFile(prefix)
                token = data.draw(st.integers(0, file.num_tokens - 1))
                document = file.find_document(token)
                start, stop = file.document_start(document), file.document_start(document + 1)
                assert start <= token < stop
                assert len(file.tokens(start, stop)) == stop - start
                ends = file.sequence_ends(start, stop, document)
                assert ((ends > start) & (ends <= stop)).all()
                assert (np.diff(ends) > 0).all()
                file.check(NUM_IDS, EOS)
            except DataError:
                assert content != idx

    holds()


def test_documents_whose_differences_overflow_are_found(tmp_path):
    # 0, 2**63 - 1, -2, 2: each step is forward modulo 2**64.
    prefix = tmp_path / "pair"
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        for _ in range(2):
            writer.add_document(np.array([5, 6]))
    content = idx_path(prefix).read_bytes()
    header = HEADER.pack(MAGIC, VERSION, 8, 2, 4)
    bounds = np.array([0, 2**63 - 1, -2, 2], "<i8").tobytes()
    idx_path(prefix).write_bytes(header + content[HEADER.size : HEADER.size + 24] + bounds)
    with pytest.raises(DataError, match="entry 2 of its documents goes backwards"):
        IndexedFile(prefix).check(NUM_IDS, 6)

"""The .bin/.idx pair: what is written comes back, equals Megatron's, and damage is an error, never a crash."""

import contextlib
import struct
from itertools import chain

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megatron_glm.data.indexed import IndexedFile
from megatron_glm.data.indexed_writer import IndexedWriter
from megatron_glm.data.pair_format import bin_path, idx_path
from megatron_glm.errors import DataError

UINT16, INT32 = np.dtype(np.uint16), np.dtype(np.int32)
# A document is a list of sequences; some of either are empty.
DOCUMENTS = st.lists(st.lists(st.lists(st.integers(0, 65_499), max_size=5), max_size=4), max_size=8)
per_example = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def joined(lists):
    return list(chain.from_iterable(lists))


def write(prefix, documents, dtype=UINT16):
    bin_path(prefix).unlink(missing_ok=True)
    idx_path(prefix).unlink(missing_ok=True)
    with IndexedWriter(prefix, dtype) as writer:
        for sequences in documents:
            writer.add_document(np.array(joined(sequences), np.int64), [len(sequence) for sequence in sequences])
    return prefix


@pytest.fixture
def pair(tmp_path):
    return write(tmp_path / "pair", [[[1, 2, 3], [4]], [], [[5]], [[6, 7]]])


@per_example
@given(documents=DOCUMENTS, dtype=st.sampled_from([UINT16, INT32]))
def test_what_is_written_comes_back(tmp_path, documents, dtype):
    file = IndexedFile(write(tmp_path / "pair", documents, dtype))
    flat = [joined(sequences) for sequences in documents]
    assert file.num_documents == len(documents)
    assert file.num_sequences == sum(map(len, documents))
    assert file.num_tokens == sum(map(len, flat))
    for k, tokens in enumerate(flat):
        assert file.tokens(file.document_start(k), file.document_start(k + 1)).tolist() == tokens
    assert file.tokens(0, file.num_tokens).tolist() == joined(flat)
    file.check(vocab_size=65_500)


@per_example
@given(documents=DOCUMENTS, data=st.data())
def test_the_sequences_that_end_in_a_range_are_found(tmp_path, documents, data):
    file = IndexedFile(write(tmp_path / "pair", documents))
    ends = set(np.cumsum([len(sequence) for sequence in joined(documents)], dtype=np.int64).tolist())
    start = data.draw(st.integers(0, file.num_tokens))
    stop = data.draw(st.integers(start, file.num_tokens))
    found = file.sequence_ends(start, stop)
    assert found.dtype == np.int64
    assert found.tolist() == sorted(end for end in ends if start < end <= stop)
    for document in range(len(documents)):
        if file.document_start(document) <= start:
            assert file.sequence_ends(start, stop, document).tolist() == found.tolist()


def test_any_number_of_sequences_may_end_in_a_range(tmp_path):
    file = IndexedFile(write(tmp_path / "pair", [[[1]] * 300, [[2]] * 500]))
    for start, stop in ((0, 800), (3, 250), (640, 800), (1, 65), (1, 66)):
        assert file.sequence_ends(start, stop).tolist() == list(range(start + 1, stop + 1))


def test_sequences_cannot_be_asked_for_outside_the_file(pair):
    for start, stop in ((-1, 2), (3, 2), (0, 8)):
        with pytest.raises(IndexError, match=r"lie outside 0 … 7"):
            IndexedFile(pair).sequence_ends(start, stop)


@per_example
@given(documents=DOCUMENTS)
def test_find_document_is_the_inverse_of_document_start(tmp_path, documents):
    file = IndexedFile(write(tmp_path / "pair", documents))
    holders = [k for k, sequences in enumerate(documents) for _ in joined(sequences)]
    assert [file.find_document(token) for token in range(file.num_tokens)] == holders


@pytest.mark.parametrize("dtype", [UINT16, INT32])
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=DOCUMENTS)
def test_files_equal_those_of_megatron_core_and_it_reads_ours(tmp_path, documents, dtype):
    megatron = pytest.importorskip("megatron.core.datasets.indexed_dataset", exc_type=ImportError)
    ours, theirs = write(tmp_path / "ours", documents, dtype), tmp_path / "theirs"
    builder = megatron.IndexedDatasetBuilder(str(bin_path(theirs)), dtype=dtype.type)
    for sequences in documents:
        builder.add_document(joined(sequences), [len(sequence) for sequence in sequences])
    builder.finalize(str(idx_path(theirs)))
    assert bin_path(ours).read_bytes() == bin_path(theirs).read_bytes()
    assert idx_path(ours).read_bytes() == idx_path(theirs).read_bytes()
    if bin_path(ours).stat().st_size:  # megatron-core cannot open an empty .bin
        read = megatron.IndexedDataset(str(ours))
        sequences = [sequence for document in documents for sequence in document]
        assert [read[i].tolist() for i in range(len(read))] == sequences


def test_layout_is_the_documented_one(tmp_path):
    prefix = write(tmp_path / "pair", [[[7, 8], [9]], []])
    assert bin_path(prefix).read_bytes() == struct.pack("<3H", 7, 8, 9)
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 3)
    assert idx_path(prefix).read_bytes() == header + struct.pack("<2i2q3q", 2, 1, 0, 4, 0, 2, 2)


def test_by_default_a_document_is_one_sequence_and_an_empty_one_none(tmp_path):
    with IndexedWriter(tmp_path / "pair", UINT16) as writer:
        writer.add_document(np.array([1, 2]))
        writer.add_document(np.array([]))
    file = IndexedFile(tmp_path / "pair")
    assert (file.num_documents, file.num_sequences) == (2, 1)


def test_a_shard_of_empty_documents_can_be_read(tmp_path):
    file = IndexedFile(write(tmp_path / "pair", [[], []]))
    assert (file.num_documents, file.num_tokens) == (2, 0)
    assert [file.document_start(k) for k in range(3)] == [0, 0, 0]
    assert file.tokens(0, 0).shape == (0,)
    file.check()


def test_arrays_outlive_the_file(pair):
    file = IndexedFile(pair)
    tokens = file.tokens(1, 4)
    del file
    bin_path(pair).write_bytes(b"")
    assert tokens.tolist() == [2, 3, 4]
    assert tokens.dtype == np.int32


@pytest.mark.parametrize("what", [lambda f: f.tokens(0, 8), lambda f: f.tokens(3, 2), lambda f: f.tokens(-1, 2)])
def test_ranges_outside_the_file_are_refused(pair, what):
    with pytest.raises(IndexError):
        what(IndexedFile(pair))


def test_places_outside_the_file_are_refused(pair):
    file = IndexedFile(pair)
    for read, place in ((file.document_start, 5), (file.document_start, -1), (file.find_document, 7)):
        with pytest.raises(IndexError, match=str(place)):
            read(place)


@per_example
@given(data=st.data())
def test_a_cut_or_extended_index_is_refused(tmp_path, data):
    prefix = write(tmp_path / "pair", [[[1, 2, 3], [4]], [], [[5]], [[6, 7]]])
    whole = idx_path(prefix).read_bytes()
    size = data.draw(st.integers(0, len(whole) + 40).filter(lambda size: size != len(whole)))
    idx_path(prefix).write_bytes(whole[:size].ljust(size, b"\0"))
    with pytest.raises(DataError):
        IndexedFile(prefix)


@per_example
@given(data=st.data())
def test_a_damaged_index_never_crashes(tmp_path, data):
    prefix = write(tmp_path / "pair", [[[1, 2, 3], [4]], [], [[5]], [[6, 7]]])
    damaged = bytearray(idx_path(prefix).read_bytes())
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= data.draw(st.integers(1, 255))
    idx_path(prefix).write_bytes(damaged)
    documents = len(damaged) - 8 * 5
    # One sequence more or less for a document cannot be seen: which belong together is the writer's choice.
    with pytest.raises(DataError) if place < documents else contextlib.suppress(DataError):
        IndexedFile(prefix).check()
    try:
        file = IndexedFile(prefix)
    except DataError:
        return
    for read, count in ((file.document_start, file.num_documents + 1), (file.find_document, file.num_tokens)):
        for k in range(count):
            with contextlib.suppress(DataError):
                assert 0 <= read(k) <= 7
    with contextlib.suppress(DataError):
        for document in (None, 0):
            ends = file.sequence_ends(1, 6, document)
            assert ((ends > 1) & (ends <= 6)).all()


@pytest.mark.parametrize("size", [0, 2, 7, 12, 16])
def test_a_bin_of_another_size_is_refused(pair, size):
    bin_path(pair).write_bytes(b"\0" * size)
    with pytest.raises(DataError, match=r"pair\.bin"):
        IndexedFile(pair)


@pytest.mark.parametrize("path", [bin_path, idx_path])
def test_a_missing_file_is_named(pair, path):
    path(pair).unlink()
    with pytest.raises(DataError, match=path(pair).name):
        IndexedFile(pair)


@pytest.mark.parametrize("code", [0, 1, 5, 6, 7, 9, 255])
def test_types_that_forks_disagree_about_are_refused(pair, code):
    content = bytearray(idx_path(pair).read_bytes())
    content[17] = code
    idx_path(pair).write_bytes(content)
    with pytest.raises(DataError, match=f"type code {code} cannot be read"):
        IndexedFile(pair)


def test_check_finds_ids_outside_the_vocabulary_and_documents_without_eos(pair):
    IndexedFile(pair).check(vocab_size=8)
    with pytest.raises(DataError, match=r"token 5 is id 6, ids must be 0 … 5"):
        IndexedFile(pair).check(vocab_size=6)
    with pytest.raises(DataError, match=r"document 1 does not end with eos \(id 4\)"):
        IndexedFile(pair).check(eos=4)
    IndexedFile(write(pair.with_name("good"), [[[1, 9]], [[2], [9]]])).check(eos=9)


@pytest.mark.parametrize("tokens", [32_768, 65_535, 65_537])
def test_a_document_may_be_longer_than_a_narrow_type_can_count(tmp_path, tokens):
    file = IndexedFile(write(tmp_path / "pair", [[[3]], [[7] * tokens], [[5]]]))
    assert [file.document_start(k) for k in range(4)] == [0, 1, tokens + 1, tokens + 2]
    assert file.find_document(tokens) == 1


def test_offsets_of_more_than_two_gigabytes_do_not_wrap(tmp_path):
    # A sparse .bin and one array for all: 3 x 2**30 tokens without writing them.
    writer = IndexedWriter(tmp_path / "pair", UINT16)
    writer._lengths.extend([2**30] * 3)
    writer._documents.extend([1, 2, 3])
    writer.close()
    with open(bin_path(tmp_path / "pair"), "r+b") as stream:
        stream.truncate(3 * 2**31)
    file = IndexedFile(tmp_path / "pair")
    assert [file.document_start(k) for k in range(4)] == [0, 2**30, 2**31, 3 * 2**30]
    assert file.find_document(2**31 + 5) == 2

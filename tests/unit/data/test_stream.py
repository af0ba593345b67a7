"""The stream: a corpus with its virtual tokens, cut anywhere."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megatron_glm.data.stream import Stream

CLS, EOS = 50_000, 50_001  # of the fixture `special`
corpora = st.lists(st.lists(st.integers(0, 99), max_size=9), min_size=1, max_size=12)


def written_out(documents):
    """The stream as a plain list, and where its documents start."""
    stream, starts = [], []
    for document in documents:
        starts.append(len(stream))
        stream += [CLS, *document, EOS]
    return stream, starts


def expected_pieces(documents, start, stop):
    """The pieces of [start, stop) by the definition."""
    stream, starts = written_out(documents)
    pieces = []
    for place in range(start, stop):
        if place in starts:
            pieces.append([])
        elif not pieces:
            pieces.append([CLS])
        pieces[-1].append(stream[place])
    return pieces


def open_stream(memory_shards, special, documents, eos_stored):
    if eos_stored:
        documents = [[*document, EOS] for document in documents]
    return Stream(memory_shards(documents, ends_with_eos=eos_stored), special)


@settings(max_examples=200, deadline=None)
@given(documents=corpora, eos_stored=st.booleans(), data=st.data())
@example(documents=[[]], eos_stored=False, data=None)
def test_a_window_holds_the_pieces_of_its_range(memory_shards, special, documents, eos_stored, data):
    stream = open_stream(memory_shards, special, documents, eos_stored)
    assert stream.length == len(written_out(documents)[0])
    start = data.draw(st.integers(0, stream.length)) if data else 0
    stop = data.draw(st.integers(start, stream.length)) if data else stream.length
    window = stream.pieces(start, stop)
    bounds = window.starts.tolist()
    pieces = [window.tokens[a:b].tolist() for a, b in pairwise(bounds)]
    assert pieces == expected_pieces(documents, start, stop)
    assert window.tokens.dtype == window.starts.dtype == np.int32
    assert len(window.tokens) == bounds[-1] <= stop - start + 1


@settings(max_examples=100, deadline=None)
@given(
    documents=corpora,
    eos_stored=st.booleans(),
    window=st.integers(2, 12),
    shift=st.integers(0, 10),
)
def test_the_windows_of_a_grid_hold_every_stored_token_once(
    memory_shards, special, documents, eos_stored, window, shift
):
    stream = open_stream(memory_shards, special, documents, eos_stored)
    cuts = sorted({0, *range(shift % (window - 1), stream.length, window - 1), stream.length})
    windows = [stream.pieces(a, b) for a, b in pairwise(cuts)]
    assert all(len(w.tokens) <= window for w in windows)
    tokens = np.concatenate([w.tokens for w in windows])
    assert tokens[tokens < CLS].tolist() == list(chain.from_iterable(documents))
    assert (tokens == EOS).sum() == len(documents)


@settings(max_examples=200, deadline=None)
@given(documents=corpora, eos_stored=st.booleans(), data=st.data())
def test_the_stored_ends_of_sentences_stand_on_their_tokens(memory_shards, special, documents, eos_stored, data):
    # A sentence ends with every fifth id, and with each document, its eos included.
    stored = [[*document, *[EOS] * eos_stored] for document in documents]
    is_end = [t % 5 == 0 or k == len(d) - 1 for d in stored for k, t in enumerate(d)]
    ends = (np.flatnonzero(is_end) + 1).tolist()
    shards = memory_shards(stored, ends_with_eos=eos_stored, sentence_ends=ends)
    stream = Stream(shards, special, sentences=True)
    start = data.draw(st.integers(0, stream.length))
    stop = data.draw(st.integers(start, stream.length))
    window = stream.pieces(start, stop)
    assert window.sentence_ends.dtype == np.bool_
    expected = []
    for document in stored:
        expected += [False, *(t % 5 == 0 or k == len(document) - 1 for k, t in enumerate(document))]
        expected += [False] * (not eos_stored)
    expected = expected[start:stop]
    own_cls = [False] * (len(window.tokens) - (stop - start))
    assert window.sentence_ends.tolist() == own_cls + expected


def test_ends_of_sentences_are_looked_up_only_where_asked_for_and_stored(memory_shards, special):
    with_ends, without = memory_shards([[7, EOS]], sentence_ends=[2]), memory_shards([[7, EOS]])
    assert Stream(with_ends, special, sentences=True).pieces(0, 3).sentence_ends.tolist() == [False, False, True]
    assert Stream(with_ends, special, sentences=True).pieces(1, 1).sentence_ends.tolist() == []
    assert Stream(with_ends, special).pieces(0, 3).sentence_ends is None
    assert Stream(without, special, sentences=True).pieces(0, 3).sentence_ends is None


def test_a_document_without_its_stored_eos_is_a_bare_cls(memory_shards, special):
    stream = Stream(memory_shards([[], [7, EOS], []]), special)
    window = stream.pieces(0, stream.length)
    assert window.tokens.tolist() == [CLS, CLS, 7, EOS, CLS]
    assert window.starts.tolist() == [0, 1, 4, 5]


def test_an_empty_range_has_no_pieces(memory_shards, special):
    stream = Stream(memory_shards([[7, EOS]]), special)
    for place in (0, 1, 3):
        window = stream.pieces(place, place)
        assert (window.tokens.tolist(), window.starts.tolist()) == ([], [0])


def test_a_corpus_of_no_documents_has_length_zero(memory_shards, special):
    stream = Stream(memory_shards([]), special)
    assert stream.length == 0
    assert stream.pieces(0, 0).tokens.tolist() == []


def test_a_window_asks_for_few_document_starts(memory_shards, special, monkeypatch):
    stream = Stream(memory_shards([[1, 2, EOS]] * 5000), special)
    asked = []
    start_of = stream._start_of
    monkeypatch.setattr(stream, "_start_of", lambda k: asked.append(k) or start_of(k))
    stream.pieces(10_000, 10_016)
    assert len(asked) < 25


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 4)])
def test_refuses_a_range_outside_the_stream(memory_shards, special, start, stop):
    with pytest.raises(IndexError, match=rf"stream range {start}\.\.{stop} lies outside 0\.\.3"):
        Stream(memory_shards([[7, EOS]]), special).pieces(start, stop)

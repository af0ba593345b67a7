"""Segments: what is dropped, what is joined, and how short sequences are cut."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.objective.segments import cut_short, segment
from megatron_glm.objective.window import Window

CLS, EOS, END = 1, 0, 8
MASKABLE = np.arange(2000) >= 8
SENTENCE_END = np.arange(2000) == END


def test_pieces_with_nothing_to_mask_are_dropped(make_window):
    segments = segment(make_window([], [20], [], [30, 31], [], open_end=True), MASKABLE, isolate=True)
    assert segments.tokens.tolist() == [CLS, 20, EOS, CLS, 30, 31, EOS]
    assert segments.bounds.tolist() == [0, 3, 7]
    assert segments.runs == [(1, 2), (4, 6)]


def test_joined_documents_are_one_segment_with_the_same_runs(make_window):
    window = make_window([20], [], [30, 31])
    joined, isolated = (segment(window, MASKABLE, isolate=isolate) for isolate in (False, True))
    assert joined.bounds.tolist() == [0, 7]
    assert joined.runs == isolated.runs
    assert joined.tokens.tolist() == isolated.tokens.tolist()


def test_a_window_with_nothing_to_mask_has_no_segments(make_window):
    for window in (make_window([], [], open_end=True), Window(np.empty(0, np.int32), np.zeros(1, np.int32))):
        for isolate in (True, False):
            segments = segment(window, MASKABLE, isolate=isolate)
            assert (len(segments.tokens), segments.bounds.tolist(), segments.runs) == (0, [0], [])


def test_short_sequences_end_with_a_sentence_where_one_is_near(make_window):
    text = [20, 20, 20, 20, END, 20, 20, 20, 20, 20, 20, 20, 20, 20]
    short = cut_short(make_window(text), SENTENCE_END, CLS, 6)
    pieces = np.split(short.tokens, short.starts[1:-1])
    assert [piece.tolist() for piece in pieces] == [
        [CLS, 20, 20, 20, 20, END],
        [CLS, 20, 20, 20, 20, 20, 20],
        [CLS, 20, 20, 20, EOS],
    ]


def test_short_sequences_end_where_the_source_says_so(make_window):
    window = make_window([20, 20, 20, 20, END, 20, 20, 20, 20, 20, 20, 20, 20, 20])
    stored = np.isin(np.arange(len(window.tokens)), [4, 9, 15])
    short = cut_short(Window(window.tokens, window.starts, stored), SENTENCE_END, CLS, 6)
    pieces = np.split(short.tokens, short.starts[1:-1])
    assert [len(piece) for piece in pieces] == [5, 6, 7]
    ends = [np.flatnonzero(piece).tolist() for piece in np.split(short.sentence_ends, short.starts[1:-1])]
    assert ends == [[4], [5], [6]]


@given(
    lengths=st.lists(st.integers(0, 120), min_size=1, max_size=5), length=st.integers(3, 60), seed=st.integers(0, 99)
)
def test_short_sequences_lose_no_token_and_stay_near_their_length(make_window, lengths, length, seed):
    rng = np.random.default_rng(seed)
    window = make_window(*(rng.integers(8, 16, n).tolist() for n in lengths))
    short = cut_short(window, SENTENCE_END, CLS, length)
    assert (short.tokens[short.starts[:-1]] == CLS).all()
    assert (short.starts[0], short.starts[-1]) == (0, len(short.tokens))
    assert short.tokens[short.tokens != CLS].tolist() == window.tokens[window.tokens != CLS].tolist()
    assert len(short.tokens) - len(window.tokens) <= 2 * len(window.tokens) // length
    bodies = np.diff(short.starts) - 1
    assert (bodies < length * 1.5 + 1).all()
    assert len(bodies) == len(lengths) or bodies.max() >= length / 2
    lone = [piece.tolist() for piece in np.split(short.tokens, short.starts[1:-1])].count([CLS, EOS])
    assert lone == lengths.count(0)

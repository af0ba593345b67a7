"""The sentence objective: whole sentences, apart from one another while there are others."""

import numpy as np
import pytest

from megatron_glm.objective.randomness import Draws
from megatron_glm.objective.segments import segment
from megatron_glm.objective.sentence import sentence_spans
from megatron_glm.objective.spans import Limits
from megatron_glm.objective.window import Window

MASKABLE = np.arange(2000) >= 8
END, MARK = 8, 9


@pytest.fixture
def drawn(make_window, sentence_ends):
    """Spans of a window as (start, stop) in its text tokens, over many draws."""

    def draw(texts, *, ratio=0.15, max_spans=40, longest=511, samples=60):
        segments = segment(make_window(*texts), MASKABLE, isolate=True)
        limits = Limits(max_spans, longest)
        return [sentence_spans(segments, Draws(3, i), sentence_ends, ratio, limits) for i in range(samples)]

    return draw


def places(drawn):
    return {tuple((span.start - 1, span.stop - 1) for span in spans.spans) for spans in drawn}


def test_every_sentence_is_chosen_whole_and_none_is_preferred(drawn):
    # Four sentences, one mark doubled and the last one without any: a row of marks ends one sentence.
    assert places(drawn([[20, 20, END, 21, END, MARK, 22, 22, END, 23, 23]])) == {
        ((0, 3),),
        ((3, 6),),
        ((6, 9),),
        ((9, 11),),
    }


def test_chosen_sentences_are_never_neighbours_while_others_are_left(drawn):
    for spans in drawn([[20, END] * 9], ratio=0.3):
        assert len(spans.spans) == 3
        assert all(span.stop - span.start == 2 for span in spans.spans)


def test_neighbours_join_in_one_span_as_a_last_resort(drawn):
    assert places(drawn([[20, END, *[21] * 18]])) == {((0, 20),), ((2, 20),)}
    assert places(drawn([[20, END, 21, END, 22, END]], ratio=0.9)) == {((0, 6),)}


def test_text_without_a_mark_is_one_sentence(drawn):
    assert places(drawn([[20, 21, 22]])) == {((0, 3),)}


def test_a_sentence_longer_than_a_span_is_taken_in_parts(drawn):
    for spans in drawn([[20] * 10], ratio=0.5, longest=4):
        assert all(span.stop - span.start <= 4 for span in spans.spans)
    assert places(drawn([[20] * 10], ratio=0.2, longest=4)) == {((0, 4),), ((4, 8),), ((8, 10),)}


def test_stored_ends_are_taken_as_they_are_and_marks_say_nothing(make_window, sentence_ends):
    # After the first [CLS]: three tokens with marks among them, one alone, one alone, and two before eos.
    window = make_window([], [20, END, MARK, 21, 22, END, 23], [24, 25])
    stored = np.isin(np.arange(len(window.tokens)), [1, 5, 6, 7, 10, 13])
    segments = segment(Window(window.tokens, window.starts, stored), MASKABLE, isolate=True)
    drawn = {
        (span.start, span.stop)
        for index in range(60)
        for span in sentence_spans(segments, Draws(3, index), sentence_ends, 0.15, Limits(40, 511)).spans
    }
    # The first piece is dropped, and the ends move with their tokens.
    assert drawn == {(1, 4), (4, 5), (5, 6), (6, 8), (10, 12)}


def test_a_window_in_which_no_end_is_stored_is_one_sentence_whatever_its_marks(make_window, sentence_ends):
    window = make_window([20, END, 21, END], open_end=True)
    segments = segment(Window(window.tokens, window.starts, np.zeros(5, bool)), MASKABLE, isolate=True)
    spans = sentence_spans(segments, Draws(3, 0), sentence_ends, 0.15, Limits(40, 511)).spans
    assert [(span.start, span.stop) for span in spans] == [(1, 5)]


def test_what_the_limits_refuse_is_counted(drawn):
    for spans in drawn([[20, END] * 10], ratio=0.5, max_spans=2):
        assert (len(spans.spans), spans.yielded) == (2, 6)
    for spans in drawn([[20] * 10], ratio=1.0, longest=4):
        masked = sum(span.stop - span.start for span in spans.spans)
        assert spans.yielded == 10 - masked > 0

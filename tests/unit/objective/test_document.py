"""The document objective: one long span, at the end or anywhere."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import binomtest, chisquare

from megatron_glm.objective.document import document_spans
from megatron_glm.objective.randomness import Draws
from megatron_glm.objective.segments import segment
from megatron_glm.objective.spans import Limits

MASKABLE = np.arange(2000) >= 8
EOS = 0


@pytest.fixture
def drawn(make_window):
    """The spans of a window over many draws."""

    def draw(window, *, ratio=0.5, prefix=0.5, max_spans=40, longest=511, samples=2000):
        segments = segment(window, MASKABLE, isolate=True)
        limits = Limits(max_spans, longest)
        return [document_spans(segments, Draws(3, i), ratio, prefix, EOS, limits) for i in range(samples)]

    return draw


@pytest.mark.parametrize(("ratio", "least"), [(0.5, 5), (0.25, 3)])
def test_lengths_are_uniform_from_the_least_share_to_the_whole(drawn, make_window, ratio, least):
    samples = drawn(make_window(list(range(20, 30))), ratio=ratio, prefix=0.0)
    lengths = Counter(spans.spans[0].stop - spans.spans[0].start for spans in samples)
    assert sorted(lengths) == list(range(least, 11))
    assert chisquare(list(lengths.values())).pvalue > 1e-4


def test_infill_spans_of_one_length_lie_anywhere(drawn, make_window):
    samples = drawn(make_window(list(range(20, 30))), prefix=0.0, samples=6000)
    starts = Counter(s.spans[0].start for s in samples if s.spans[0].stop - s.spans[0].start == 6)
    assert sorted(starts) == [1, 2, 3, 4, 5]
    assert chisquare(list(starts.values())).pvalue > 1e-4


def test_the_prefix_form_takes_the_end_and_the_closing_eos(drawn, make_window):
    for window, end in (
        (make_window([20, 21, 22, 23]), 6),
        (make_window([20, 21, 22, 23], open_end=True), 5),
    ):
        samples = drawn(window, prefix=1.0, samples=50)
        assert {spans.spans[0].stop for spans in samples} == {end}
        assert {spans.spans[0].start for spans in samples} == {1, 2, 3}
        assert all(spans.spans[0].ends_text for spans in samples)


def test_the_prefix_form_has_its_share(drawn, make_window):
    samples = drawn(make_window(list(range(20, 30)), list(range(20, 30))), prefix=0.3)
    forms = [span.ends_text for spans in samples for span in spans.spans]
    assert binomtest(sum(forms), len(forms), 0.3).pvalue > 1e-4


def test_limits_shorten_the_span_and_are_counted(drawn, make_window):
    samples = drawn(make_window(list(range(20, 30)), [20, 21, 22]), longest=4, max_spans=1, samples=50)
    for spans in samples:
        (span,) = spans.spans
        assert sum(20 <= place + 19 < 30 for place in range(span.start, span.stop)) == 4
        assert spans.yielded == (5 - 4) + 2

"""A sample in words: numbered blanks, spans in the order of part B, both position rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.data.sample_text import compact, describe, find_blanks
from megatron_glm.objective.layout import layout
from megatron_glm.objective.sample import Objective, Sample
from megatron_glm.objective.spans import Span

PIECES = ["<eos>", "[CLS]", "[MASK]", "<sop>", "<eop>", "[dBLOCK]", *"abcdefghijkl"]


class WordTokenizer:
    """One id a word; as the real ones, it drops the space at the edges of what it decodes."""

    def decode(self, ids):
        return " ".join(PIECES[id] for id in ids)


@pytest.fixture(scope="session")
def make_sample():
    def make(tokens, bounds, spans, order, block_tokens=None, **fields):
        arrays = layout(
            np.array(tokens, np.int32),
            np.array(bounds),
            [Span(*span) for span in spans],
            np.array(order, int),
            mask=2,
            start_of_piece=3,
            end_of_piece=4,
            block_tokens=None if block_tokens is None else np.array(block_tokens, np.int32),
        )
        return Sample(41, Objective.TOKEN, *arrays, **fields)

    return make


@pytest.fixture(scope="session")
def two_segments(make_sample):
    return make_sample([1, 6, 7, 8, 9, 10, 0, 1, 11, 12, 13], [0, 7, 11], [(1, 3), (4, 5), (9, 11, True)], [1, 0, 2])


def test_a_person_reads_every_part_of_a_sample(two_segments):
    assert [line.plain for line in describe(two_segments, WordTokenizer(), "corpus, tokens 5 … 14")] == [
        "sample 41 · token objective · 16 tokens · 2 segments · 3 blanks · 7 targets",
        "window: corpus, tokens 5 … 14",
        "",
        "segment 1 of 2 · tokens 0 … 10 · part A 6 · part B 5",
        "A  [CLS] 2:[MASK] c 1:[MASK] e <eos>",
        "   position 0…5   block position 0 ×6",
        "B  1: d <eop>",
        "       position 3 ×2   block position 1…2",
        "B  2: a b <eop>",
        "       position 1 ×3   block position 1…3",
        "",
        "segment 2 of 2 · tokens 11 … 15 · part A 3 · part B 2",
        "A  [CLS] f 3:[MASK]",
        "   position 0…2   block position 0 ×3",
        "B  3: g h",
        "       position 2 ×2   block position 1…2",
    ]


def test_a_blank_has_the_colour_of_its_span(two_segments):
    lines = list(describe(two_segments, WordTokenizer(), ""))
    for number, part_a, part_b in ((1, 4, 6), (2, 4, 8), (3, 12, 14)):
        place = lines[part_a].plain.index(f"{number}:[MASK]")
        (in_a,) = (span.style for span in lines[part_a].spans if span.start <= place < span.end)
        assert in_a in {span.style for span in lines[part_b].spans}


def test_corrupted_inputs_are_shown_as_they_are_read(make_sample):
    tokens = [1, 6, 7, 8]
    sample = make_sample(tokens, [0, 4], [(2, 4)], [0], block_tokens=[1, 6, 5, 8])
    lines = [line.plain for line in describe(sample, WordTokenizer(), "")]
    assert "B  1: b c <eop>  (read as <sop> [dBLOCK] c)" in lines


def test_what_the_limits_refused_is_told(make_sample):
    sample = make_sample([1, 6, 7, 8], [0, 4], [(2, 3)], [0], yielded=5)
    lines = [line.plain for line in describe(sample, WordTokenizer(), "")]
    assert "the limits on spans left 5 of the tokens unmasked that the ratio asks for" in lines


def test_an_empty_sample_says_so(make_sample):
    lines = [line.plain for line in describe(make_sample([], [0], [], []), WordTokenizer(), "")]
    assert lines[-1] == "nothing in this window can be masked"


def test_parts_that_read_otherwise_alone_are_shown_as_they_read_alone(make_sample):
    class ClosingTokenizer(WordTokenizer):
        def decode(self, ids):
            return f"{super().decode(ids)}."

    sample = make_sample([1, 6, 7, 8], [0, 4], [(2, 3)], [0])
    (part_a,) = (line for line in describe(sample, ClosingTokenizer(), "") if line.plain.startswith("A"))
    assert part_a.plain == "A  [CLS] a. 1:[MASK].c."


def test_blanks_are_numbered_in_the_order_they_are_filled(two_segments):
    blanks = [
        [(blank.number, blank.mask, blank.start, blank.stop) for blank in own] for own in find_blanks(two_segments)
    ]
    assert blanks == [[(1, 3, 6, 8), (2, 1, 8, 11)], [(3, 13, 14, 16)]]


@pytest.mark.parametrize(
    ("values", "words"),
    [([], ""), ([7], "7"), ([0, 1, 2], "0…2"), ([5, 5], "5 ×2"), ([4, 2], "4, 2"), ([0, 0, 1, 2, 9], "0 ×2, 1…2, 9")],
)
def test_numbers_are_told_compactly(values, words):
    assert compact(values) == words


@given(st.lists(st.integers(0, 4), max_size=30))
def test_compact_numbers_can_be_read_back(values):
    read = []
    for part in filter(None, compact(values).split(", ")):
        if "…" in part:
            first, last = map(int, part.split("…"))
            read += range(first, last + 1)
        else:
            value, _, times = part.partition(" ×")
            read += [int(value)] * int(times or 1)
    assert read == values

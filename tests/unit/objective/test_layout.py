"""Layouts: those of the original code, array for array, and those of a plain reference."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.objective.layout import layout
from megatron_glm.objective.spans import Span

MASK, SOP, EOP = 2, 5, 6
ARRAYS = ("input_ids", "targets", "loss_mask", "position_ids", "block_position_ids")


@pytest.mark.golden
def test_layouts_equal_those_of_the_original(shared):
    golden = json.loads(shared("golden/glm_reference_layouts.json").read_text())
    ids = golden["special_ids"]
    assert len(golden["cases"]) == 84
    for case in golden["cases"]:
        tokens = np.array(case["tokens"], np.int32)
        mask = ids[case["mask"].strip("[]")]
        laid_out = layout(
            tokens,
            np.array([0, len(tokens)]),
            [Span(*span) for span in case["spans"]] if "spans" in case else [document_span(case, mask)],
            np.array(case.get("span_order", [0])),
            mask=mask,
            start_of_piece=ids["sop"],
            end_of_piece=ids["eop"],
        )
        for name in ARRAYS:
            assert getattr(laid_out, name).tolist() == case[name]
        assert laid_out.segments.tolist() == [[0, case["sep"], len(case["input_ids"])]]


def document_span(case, mask):
    """The span of a document case, read off its result."""
    prefix = case["kind"] == "document_prefix"
    start = case["input_ids"].index(mask)
    return Span(start, start + sum(case["loss_mask"]) - (not prefix), ends_text=prefix)


def reference_layout(tokens, bounds, spans, span_order, block_tokens):
    """The same, token by token."""
    rows, segments = [], []  # a row: input, target, loss, position, block position
    for start, stop in pairwise(bounds):
        begin = len(rows)
        mask_of = {}
        place = start
        while place < stop:
            span = next((span for span in spans if span.start == place), None)
            token = tokens[place] if span is None else MASK
            if span is not None:
                mask_of[span] = len(rows) - begin
            rows.append((token, token, False, len(rows) - begin, 0))
            place = place + 1 if span is None else span.stop
        length_a = len(rows) - begin
        for span in (spans[k] for k in span_order if spans[k] in mask_of):
            inputs = [SOP, *block_tokens[span.start : span.stop]]
            targets = [*tokens[span.start : span.stop], EOP]
            if span.ends_text:
                inputs.pop()
                targets.pop()
            for step, (token, target) in enumerate(zip(inputs, targets, strict=True)):
                rows.append((token, target, True, mask_of[span], step + 1))
        segments.append([begin, length_a, len(rows)])
    return list(zip(*rows, strict=True)), segments


@st.composite
def cases(draw):
    """Segments of a first token and alternating unmasked and masked stretches, in any order of part B."""
    tokens, bounds, spans, order = [], [0], [], []
    for _ in range(draw(st.integers(1, 4))):
        first_span = len(spans)
        tokens.append(1)
        for kept, masked in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=4)):
            kept = max(kept, 1) if len(spans) > first_span else kept
            tokens += range(100 + len(tokens), 100 + len(tokens) + kept + masked)
            spans.append(Span(len(tokens) - masked, len(tokens), draw(st.booleans())))
        tokens += [0] * draw(st.integers(0, 1))
        bounds.append(len(tokens))
        order += draw(st.permutations(range(first_span, len(spans))))
    corrupted = [7 if draw(st.booleans()) else token for token in tokens]
    return np.array(tokens, np.int32), np.array(bounds), spans, np.array(order, int), np.array(corrupted, np.int32)


@given(cases())
def test_layout_equals_the_plain_reference(case):
    laid_out = layout(*case[:4], mask=MASK, start_of_piece=SOP, end_of_piece=EOP, block_tokens=case[4])
    rows, segments = reference_layout(*case)
    for name, row in zip(ARRAYS, rows, strict=True):
        assert getattr(laid_out, name).tolist() == list(row)
        assert getattr(laid_out, name).dtype == (bool if name == "loss_mask" else np.int32)
    assert laid_out.segments.tolist() == segments
    assert laid_out.segments.dtype == np.int32


def test_no_segments_give_empty_arrays():
    empty = layout(
        np.empty(0, np.int32), np.zeros(1, int), [], np.empty(0, int), mask=MASK, start_of_piece=SOP, end_of_piece=EOP
    )
    assert [getattr(empty, name).shape for name in ARRAYS] == [(0,)] * 5
    assert empty.segments.shape == (0, 3)

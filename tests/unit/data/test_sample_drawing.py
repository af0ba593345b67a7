"""The picture of an attention mask shows the rule of visibility."""

from types import SimpleNamespace

import numpy as np
import pytest

from megatron_glm.data.sample_drawing import classify, draw_attention_mask
from megatron_glm.objective.layout import layout
from megatron_glm.objective.sample import Objective, Sample
from megatron_glm.objective.spans import Span


def make_sample(*lengths):
    """Segments of as many text tokens, the first and the third token of each masked."""
    pieces = [[1, *range(10, 10 + length)] for length in lengths]
    bounds = np.cumsum([0] + [len(piece) for piece in pieces])
    spans = [Span(start + at, start + at + 1) for start in bounds[:-1].tolist() for at in (1, 3)]
    tokens = np.array([token for piece in pieces for token in piece], np.int32)
    order = np.arange(len(spans))
    arrays = layout(tokens, bounds, spans, order, mask=2, start_of_piece=3, end_of_piece=4)
    return Sample(0, Objective.TOKEN, *arrays)


def test_a_cell_is_coloured_where_the_query_sees_the_key():
    sample = make_sample(4, 3)
    kinds = classify(sample)
    for start, length_a, end in sample.segments.tolist():
        for query in range(start, end):
            seen = range(start, max(start + length_a, query + 1))
            assert np.flatnonzero(kinds[query]).tolist() == list(seen)


def test_colours_tell_part_a_own_span_and_earlier_spans_apart():
    assert classify(make_sample(3)).tolist() == [
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [2, 2, 2, 2, 3, 0, 0, 0],
        [2, 2, 2, 2, 3, 3, 0, 0],
        [2, 2, 2, 2, 4, 4, 3, 0],
        [2, 2, 2, 2, 4, 4, 3, 3],
    ]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("lengths", [(4, 3), (150,), ()])
def test_a_picture_is_written_whatever_the_pieces_hold(tmp_path, lengths):
    tokenizer = SimpleNamespace(piece=lambda id: ("$x_1", "\n", "的", "▁the")[id % 4])
    draw_attention_mask(make_sample(*lengths), tokenizer, tmp_path / "mask.png")
    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["mask.png"]

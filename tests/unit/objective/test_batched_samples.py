"""Samples made together are those made one by one, array for array, whatever the options and the windows."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_glm.objective.randomness import BatchDraws, Draws, Purpose
from megatron_glm.objective.window import Window

CLS, EOS = 1, 0


@st.composite
def windows(draw):
    """Pieces as a stream gives them, with and without stored ends, and special tokens in the text: several runs."""
    lengths = draw(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60)), max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tokens, starts = [], [0]
    for piece, length in enumerate(lengths):
        closed = piece < len(lengths) - 1 or draw(st.booleans())
        text = rng.integers(8, 30, length)
        text[rng.random(length) < draw(st.sampled_from([0.0, 0.1]))] = 2
        tokens += [CLS, *text.tolist(), *[EOS] * closed]
        starts.append(len(tokens))
    tokens = np.array(tokens, np.int32)
    ends = (rng.random(len(tokens)) < 0.2) & (tokens != CLS) if draw(st.booleans()) else None
    return Window(tokens, np.array(starts, np.int32), ends)


@st.composite
def batches(draw):
    """Options of a mixture, indices and windows."""
    made = draw(st.lists(windows(), min_size=1, max_size=12))
    size = max(2, *(len(window.tokens) for window in made)) + draw(st.integers(0, 3))
    shares = draw(st.sampled_from([(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.4, 0.3, 0.3)]))
    options = {
        **dict(zip(("token", "sentence", "document"), shares, strict=True)),
        "window": size,
        "max_positions": max(2, size - 1) + draw(st.integers(0, 3)),
        "max_spans": draw(st.sampled_from([1, 2, 3, 8, 40])),
        "mean_span": draw(st.sampled_from([0.1, 3.0, 30.0])),
        "token_ratio": draw(st.sampled_from([0.05, 0.15, 0.5, 0.9])),
        "sentence_ratio": draw(st.sampled_from([0.15, 0.6])),
        "document_min_ratio": draw(st.sampled_from([0.25, 0.5, 1.0])),
        "prefix_probability": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "isolate_documents": draw(st.booleans()),
        "shuffle_spans": draw(st.booleans()),
        "task_masks": draw(st.booleans()),
        "short_sequence_probability": draw(st.sampled_from([0.0, 0.5])),
        "single_span_probability": draw(st.sampled_from([0.0, 0.3])),
        "block_mask_probability": draw(st.sampled_from([0.0, 0.5])),
        "seed": draw(st.integers(0, 2**63 - 1)),
    }
    indices = draw(st.lists(st.integers(0, 2**62 - 1), min_size=len(made), max_size=len(made)))
    return options, np.array(indices, np.int64), made


def assert_same(made, expected):
    for field in fields(expected):
        ours, theirs = getattr(made, field.name), getattr(expected, field.name)
        assert type(ours) is type(theirs), field.name
        if isinstance(theirs, np.ndarray):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), field.name
            assert np.array_equal(ours, theirs), field.name
        else:
            assert ours == theirs, field.name


@settings(max_examples=400, deadline=None)
@given(batches())
def test_samples_made_together_are_those_made_alone(make_mixture, batch):
    options, indices, made = batch
    mixture = make_mixture(**options)
    together = mixture.samples(indices, made)
    assert len(together) == len(made)
    for sample, index, window in zip(together, indices.tolist(), made, strict=True):
        assert_same(sample, mixture.sample(index, window))


def test_batches_larger_than_a_pass_are_the_same_too(make_mixture, make_window):
    mixture = make_mixture(token=0.5, document=0.5)
    window = make_window(range(20, 300), range(300, 500))
    indices = np.arange(5, 5 + 300)
    for sample, index in zip(mixture.samples(indices, [window] * 300), indices.tolist(), strict=True):
        assert_same(sample, mixture.sample(index, window))


def test_spans_as_long_as_the_position_table_allows_are_the_same_too(make_mixture, make_window):
    # The text of an open window is longer than a span may be.
    window = make_window(range(20, 83), open_end=True)
    mixture = make_mixture(document=1.0, window=64, max_positions=63, document_min_ratio=1.0)
    sample = mixture.samples(np.zeros(1, np.int64), [window])[0]
    assert sample.block_position_ids.max() <= 63
    assert sample.yielded == 1
    assert_same(sample, mixture.sample(0, window))


def test_no_windows_make_no_samples(make_mixture):
    assert make_mixture().samples(np.zeros(0, np.int64), []) == []


def test_a_bad_window_is_refused(make_mixture):
    with pytest.raises(ValueError, match=r"does not begin with \[CLS\]"):
        make_mixture().samples(np.zeros(1, np.int64), [Window(np.array([9, 9], np.int32), np.array([0, 2], np.int32))])


@given(seed=st.integers(0, 2**63 - 1), index=st.integers(0, 2**63 - 1), purpose=st.sampled_from(Purpose))
def test_a_number_drawn_in_a_batch_is_the_one_drawn_alone(seed, index, purpose):
    alone, together = Draws(seed, index), BatchDraws(seed, np.array([0, index]))
    places = np.arange(9)
    assert np.array_equal(together.at(purpose, np.ones_like(places), places), alone.per_token(purpose, 9))
    assert together.ones(purpose)[1] == alone.one(purpose)

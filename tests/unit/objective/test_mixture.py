"""Samples: whole, bounded, blind where they must be, and a pure function of seed, index and window."""

from collections import Counter
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from megatron_glm.errors import ConfigError
from megatron_glm.objective.sample import Objective, Sample
from megatron_glm.objective.spans import least_masked
from megatron_glm.objective.window import Window

CLS, EOS, SOP, EOP, DBLOCK = 1, 0, 5, 6, 7
MASKS = (2, 3, 4)
RATIOS = {
    Objective.TOKEN: "token_ratio",
    Objective.SENTENCE: "sentence_ratio",
    Objective.DOCUMENT: "document_min_ratio",
}
PURE = {"token": 0.4, "sentence": 0.3, "document": 0.3}


@st.composite
def windows(draw):
    """Document pieces as a stream gives them: often tiny or empty, the last one often open."""
    lengths = draw(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60)), max_size=8))
    tokens, starts = [], [0]
    for piece, length in enumerate(lengths):
        text = draw(st.lists(st.integers(8, 30), min_size=length, max_size=length))
        closed = piece < len(lengths) - 1 or draw(st.booleans())
        tokens += [CLS, *text, *[EOS] * closed]
        starts.append(len(tokens))
    return Window(np.array(tokens, np.int32), np.array(starts, np.int32))


@st.composite
def cases(draw):
    """Arguments of a mixture and of `sample`."""
    window = draw(windows())
    size = max(2, len(window.tokens)) + draw(st.integers(0, 3))
    options = {
        **PURE,
        "window": size,
        "max_positions": max(2, size - 1) + draw(st.integers(0, 3)),
        "max_spans": draw(st.sampled_from([1, 2, 3, 8, 40])),
        "mean_span": draw(st.sampled_from([0.1, 3.0, 30.0])),
        "token_ratio": draw(st.sampled_from([0.05, 0.15, 0.5])),
        "sentence_ratio": draw(st.sampled_from([0.15, 0.6])),
        "document_min_ratio": draw(st.sampled_from([0.25, 0.5, 1.0])),
        "isolate_documents": draw(st.booleans()),
        "shuffle_spans": draw(st.booleans()),
        "short_sequence_probability": draw(st.sampled_from([0.0, 1.0])),
        "single_span_probability": draw(st.sampled_from([0.0, 0.3])),
        "block_mask_probability": draw(st.sampled_from([0.0, 0.5])),
    }
    objective = draw(st.sampled_from([None, *Objective]))
    return options, draw(st.integers(0, 2**62)), window, objective


def blanks(sample: Sample):
    """The spans of part B as (segment, place of the mask, inputs, targets), in their order."""
    found = []
    for number, (start, length_a, end) in enumerate(sample.segments.tolist()):
        firsts = [i for i in range(start + length_a, end) if sample.block_position_ids[i] == 1]
        for first, stop in pairwise([*firsts, end]):
            places = sample.position_ids[first:stop].tolist()
            assert places == [places[0]] * (stop - first)
            assert sample.block_position_ids[first:stop].tolist() == list(range(1, stop - first + 1))
            inputs, targets = sample.input_ids[first:stop].tolist(), sample.targets[first:stop].tolist()
            found.append((number, places[0], inputs, targets))
    return found


def original_text(sample: Sample):
    """The segments with their blanks filled again."""
    filled = {(segment, place): targets for segment, place, _, targets in blanks(sample)}
    texts = []
    for segment, (start, length_a, _) in enumerate(sample.segments.tolist()):
        text = []
        for place, token in enumerate(sample.input_ids[start : start + length_a].tolist()):
            text += [t for t in filled[segment, place] if t != EOP] if token in MASKS else [token]
        texts.append(text)
    return texts


def useful_pieces(window: Window):
    pieces = np.split(window.tokens, window.starts[1:-1])
    return [piece.tolist() for piece in pieces if (piece >= 8).any()]


@settings(max_examples=150, deadline=None)
@given(cases())
def test_the_text_is_restored_from_parts_a_and_b(make_mixture, case):
    options, index, window, objective = case
    sample = make_mixture(**options).sample(index, window, objective)
    texts, pieces = original_text(sample), useful_pieces(window)
    if options["short_sequence_probability"] and objective is None:
        texts, pieces = ([[t for t in chain.from_iterable(each) if t != CLS]] for each in (texts, pieces))
    elif not options["isolate_documents"]:
        pieces = [list(chain.from_iterable(pieces))] if pieces else []
    assert texts == pieces


@settings(max_examples=150, deadline=None)
@given(cases())
def test_no_sample_passes_its_limits(make_mixture, case):
    options, index, window, objective = case
    sample = make_mixture(**options).sample(index, window, objective)
    T = len(sample.input_ids)
    assert options["window"] + 2 * options["max_spans"] >= T
    assert len(blanks(sample)) <= options["max_spans"]
    assert (sample.position_ids >= 0).all()
    assert (sample.position_ids <= options["window"] - 1).all()
    assert (sample.block_position_ids <= options["max_positions"]).all()
    assert [len(a) for a in (sample.targets, sample.loss_mask, sample.position_ids)] == [T] * 3


@settings(max_examples=150, deadline=None)
@given(cases())
def test_masks_never_touch_and_targets_hold_no_special_tokens(make_mixture, case):
    options, index, window, objective = case
    sample = make_mixture(**options).sample(index, window, objective)
    for start, length_a, _ in sample.segments.tolist():
        is_mask = np.isin(sample.input_ids[start : start + length_a], MASKS)
        assert not (is_mask[1:] & is_mask[:-1]).any()
        assert not is_mask[0]
    for _, _, inputs, targets in blanks(sample):
        text = targets[:-1] if targets[-1] in (EOP, EOS) else targets
        assert targets[-1] == EOP or sample.objective is Objective.DOCUMENT
        assert text
        assert min(text) >= 8
        assert inputs[0] == SOP
        for read, written in zip(inputs[1:], targets, strict=False):
            assert read in (written, DBLOCK)
    assert np.array_equal(sample.targets[~sample.loss_mask], sample.input_ids[~sample.loss_mask])


@settings(max_examples=150, deadline=None)
@given(cases())
def test_the_ratio_is_reached_but_for_what_is_counted(make_mixture, case):
    options, index, window, _ = case
    for objective in Objective:
        sample = make_mixture(**options).sample(index, window, objective)
        ratio = options[RATIOS[objective]]
        wanted = sum(least_masked(ratio, sum(t >= 8 for t in piece)) for piece in useful_pieces(window))
        masked = sum(t >= 8 for _, _, _, targets in blanks(sample) for t in targets)
        assert masked >= wanted - sample.yielded
        room = options["max_spans"] >= len(window.tokens) and options["max_positions"] > options["window"]
        assert sample.yielded == 0 or not room


@settings(max_examples=100, deadline=None)
@given(cases())
def test_part_a_never_sees_part_b_and_no_span_sees_a_later_one(make_mixture, case):
    options, index, window, objective = case
    sample = make_mixture(**options).sample(index, window, objective)
    T = len(sample.input_ids)
    sees = np.zeros((T, T), bool)  # the rule of the architecture, token by token
    for start, length_a, end in sample.segments.tolist():
        for i in range(start, end):
            sees[i, start : max(start + length_a, i + 1)] = True
    segment = np.repeat(np.arange(len(sample.segments)), sample.segments[:, 2] - sample.segments[:, 0])
    step = np.cumsum(sample.block_position_ids == 1)  # which span, in the order of part B
    in_b = sample.loss_mask
    same = segment[:, None] == segment[None, :]
    earlier = np.arange(T)[:, None] >= np.arange(T)[None, :]
    expected = same & np.where(in_b[None, :], in_b[:, None] & earlier, True)
    assert np.array_equal(sees, expected)
    assert not (sees & in_b[None, :] & (step[None, :] > step[:, None])).any()
    assert not sees[~in_b][:, in_b].any()


@settings(max_examples=100, deadline=None)
@given(cases())
def test_a_sample_is_a_function_of_seed_index_and_window(make_mixture, case):
    options, index, window, objective = case
    mixture = make_mixture(**options)
    first = mixture.sample(index, window, objective)
    mixture.sample(index + 1, window)
    again = mixture.sample(index, window, objective)
    elsewhere = make_mixture(**options).sample(index, window, objective)
    for other in (again, elsewhere):
        assert (other.index, other.objective, other.yielded) == (index, first.objective, first.yielded)
        for name in ("input_ids", "targets", "position_ids", "block_position_ids", "segments"):
            assert np.array_equal(getattr(first, name), getattr(other, name))
    assert first.objective is (mixture.draw(index) if objective is None else objective)


def test_samples_are_frozen(make_mixture, make_window):
    # Runs in progress depend on these values: a change here breaks their resume.
    window = make_window([12, 13, 14, 8, 16, 17, 18, 19, 20, 9, 22, 23], [30, 31, 10, 33])
    mixture = make_mixture(**PURE, block_mask_probability=0.3)
    assert [int(mixture.draw(index)) for index in range(8)] == [0, 0, 2, 0, 1, 1, 1, 1]
    assert {o.name: mixture.sample(5, window, o).input_ids.tolist() for o in Objective} == {
        "TOKEN": [1, 12, 13, 14, 8, 2, 18, 19, 20, 9, 22, 23, 0, 5, 16, 17, 1, 30, 31, 2, 0, 5, 10, 33],
        "SENTENCE": [1, 12, 13, 14, 8, 16, 17, 18, 19, 20, 9, 3, 0, 5, 22, 23, 1, 30, 31, 10, 3, 0, 5, 33],
        "DOCUMENT": [1, 12, 13, 14, 8, 16, 4, 5, 17, 18, 19, 20, 9, 22, 23, 1, 30, 31, 4, 0, 5, 10, 33],
    }


def test_another_seed_or_index_gives_another_sample(make_mixture, make_window):
    window = make_window(list(range(12, 200)))
    samples = [make_mixture(seed=seed).sample(index, window) for seed, index in ((1, 1), (1, 2), (2, 1))]
    assert len({sample.input_ids.tobytes() for sample in samples}) == 3


def test_objectives_occur_as_often_as_the_config_says(make_mixture):
    mixture = make_mixture(token=0.5, sentence=0.3, document=0.2)
    counts = Counter(mixture.draw(index) for index in range(5000))
    assert chisquare([counts[o] for o in Objective], [2500, 1500, 1000]).pvalue > 1e-4
    assert mixture.probabilities == pytest.approx((0.5, 0.3, 0.2))


@pytest.mark.parametrize("only", ["token", "sentence", "document"])
def test_an_objective_of_no_probability_never_occurs(make_mixture, only):
    assert {make_mixture(**{only: 1.0}).draw(index).name.lower() for index in range(500)} == {only}


@pytest.mark.parametrize("texts", [[[20, 21, 22, 23, 24]] * 2, [[20], [30, 31], [40, 41, 42]]])
def test_all_arrangements_of_the_segments_are_equally_likely(make_mixture, make_window, texts):
    # One-token spans: two in five tokens, or one in a tiny document; segments are independent.
    mixture = make_mixture(mean_span=1e-9, token_ratio=0.4 if len(texts) == 2 else 0.15)
    window = make_window(*texts)
    arrangements = Counter(
        tuple(np.flatnonzero(np.isin(sample.input_ids, MASKS) & ~sample.loss_mask).tolist())
        for sample in (mixture.sample(index, window) for index in range(3600))
    )
    assert len(arrangements) == (36 if len(texts) == 2 else 6)
    assert chisquare(list(arrangements.values())).pvalue > 1e-4


def test_all_orders_of_part_b_are_equally_likely(make_mixture, make_window):
    mixture = make_mixture(mean_span=1e-9, token_ratio=0.6)
    window = make_window([20, 21, 22, 23, 24])  # three one-token spans fit in one way
    orders = Counter(tuple(blank[1] for blank in blanks(mixture.sample(i, window))) for i in range(2400))
    assert len(orders) == 6
    assert chisquare(list(orders.values())).pvalue > 1e-4


def test_the_longest_documents_are_served_first_when_spans_run_out(make_mixture, make_window):
    window = make_window([20], [30, 31, 32], [40], [50, 51])
    sample = make_mixture(max_spans=2).sample(0, window, Objective.TOKEN)
    assert [segment for segment, *_ in blanks(sample)] == [1, 3]
    assert sample.yielded == 2
    assert original_text(sample) == useful_pieces(window)


def test_a_window_with_nothing_to_mask_is_an_empty_sample(make_mixture, make_window):
    mixture = make_mixture(**PURE, short_sequence_probability=0.5, single_span_probability=0.3)
    nothing = make_window([], [], open_end=True), Window(np.empty(0, np.int32), np.zeros(1, np.int32))
    for index in range(40):
        for window in nothing:
            sample = mixture.sample(index, window)
            assert (len(sample.input_ids), sample.segments.shape, sample.yielded) == (0, (0, 3), 0)


@pytest.mark.parametrize("objective", Objective)
def test_one_mask_for_all_objectives_when_task_masks_are_off(make_mixture, make_window, objective):
    window = make_window(list(range(8, 60)))
    for task_masks, mask in ((True, MASKS[objective]), (False, MASKS[0])):
        sample = make_mixture(task_masks=task_masks).sample(0, window, objective)
        assert set(sample.input_ids.tolist()) & set(MASKS) == {mask}


def test_spans_keep_the_order_of_the_text_without_shuffling(make_mixture, make_window):
    window = make_window(list(range(20, 150)), list(range(200, 300)))
    shuffled, ordered = (make_mixture(shuffle_spans=s).sample(4, window) for s in (True, False))
    keys = [(segment, place) for segment, place, *_ in blanks(ordered)]
    assert keys == sorted(keys)
    assert [(segment, place) for segment, place, *_ in blanks(shuffled)] != keys
    assert sorted(blanks(shuffled)) == sorted(blanks(ordered))


def test_joining_documents_changes_what_is_seen_and_not_what_is_masked(make_mixture, make_window):
    window = make_window(list(range(20, 60)), list(range(60, 90)), list(range(90, 120)))
    for objective in Objective:
        isolated, joined = (
            make_mixture(isolate_documents=isolate).sample(2, window, objective) for isolate in (True, False)
        )
        assert len(joined.segments) == 1
        spans = [sorted(targets for *_, targets in blanks(sample)) for sample in (isolated, joined)]
        assert spans[0] == spans[1]
        length_a = joined.segments[0, 1]
        assert joined.position_ids[:length_a].tolist() == list(range(length_a))


def test_short_sequences_have_a_length_of_their_own_in_each_sample(make_mixture, make_window):
    mixture = make_mixture(short_sequence_probability=0.5)
    window = make_window(list(range(12, 522))[:510])
    counts = [len(mixture.sample(index, window).segments) for index in range(200)]
    assert 70 < sum(count > 1 for count in counts) < 130
    assert len(set(counts)) > 5
    assert max(counts) <= 512 // 16
    assert len(mixture.sample(counts.index(max(counts)), window, Objective.TOKEN).segments) == 1


def test_the_cls_of_short_sequences_takes_from_the_room_of_the_spans(make_mixture, make_window):
    options = {"window": 202, "max_spans": 8, "token_ratio": 0.5, "mean_span": 0.1}
    mixture = make_mixture(**options, short_sequence_probability=1.0)
    samples = [mixture.sample(index, make_window(list(range(12, 212)))) for index in range(100)]
    assert {len(blanks(sample)) for sample in samples} == {6, 7, 8}
    assert max(len(sample.input_ids) for sample in samples) == mixture.capacity == 202 + 2 * 8


def test_a_single_span_is_a_token_sample_with_one_span_a_segment(make_mixture, make_window):
    mixture = make_mixture(document=1.0, single_span_probability=0.4)
    window = make_window(list(range(12, 60)), list(range(12, 90)))
    samples = [mixture.sample(index, window) for index in range(500)]
    single = [sample for sample in samples if sample.objective is Objective.TOKEN]
    assert 150 < len(single) < 250
    assert all([segment for segment, *_ in blanks(sample)] == [0, 1] for sample in single)
    assert 2.9 < np.mean([len(targets) - 1 for s in single for *_, targets in blanks(s)]) < 3.4
    assert mixture.probabilities == pytest.approx((0.4, 0.0, 0.6))


def test_a_single_span_of_joined_documents_falls_on_them_by_their_length(make_mixture, make_window):
    mixture = make_mixture(single_span_probability=1.0, isolate_documents=False, mean_span=1e-9)
    window = make_window([20] * 2, [21] * 6)
    targets = Counter(blanks(mixture.sample(index, window))[0][3][0] for index in range(2000))
    assert chisquare([targets[20], targets[21]], [500, 1500]).pvalue > 1e-4


def test_dblock_replaces_inputs_of_part_b_alone(make_mixture, make_window):
    window = make_window(list(range(12, 500)))
    hits = inputs = 0
    for index in range(50):
        clean = make_mixture().sample(index, window)
        noisy = make_mixture(block_mask_probability=0.1).sample(index, window)
        changed = clean.input_ids != noisy.input_ids
        assert np.array_equal(clean.targets, noisy.targets)
        assert (noisy.input_ids[changed] == DBLOCK).all()
        assert (noisy.block_position_ids[changed] > 1).all()
        hits += int(changed.sum())
        inputs += int((noisy.block_position_ids > 1).sum())
    assert 0.08 < hits / inputs < 0.12
    harder = make_mixture(**PURE, block_mask_probability=0.9)
    for index in range(30):
        assert (DBLOCK in harder.sample(index, window).input_ids) == (harder.draw(index) is Objective.TOKEN)
        assert DBLOCK not in harder.sample(index, window, Objective.TOKEN).input_ids


def test_dblock_without_such_a_token_is_refused(make_mixture, special):
    with pytest.raises(ConfigError, match=r"objective\.block_mask_probability: 0\.1 needs a \[dBLOCK\]"):
        make_mixture(block_mask_probability=0.1, special=replace(special, block_mask=None))


def test_a_window_longer_than_the_positions_is_refused(make_mixture):
    make_mixture(window=513, max_positions=512)
    with pytest.raises(ConfigError, match=r"model\.max_positions: 512 is too small for data\.window 514"):
        make_mixture(window=514, max_positions=512)


def test_a_window_that_breaks_its_promises_is_refused(make_mixture, make_window):
    with pytest.raises(ValueError, match="does not begin with"):
        make_mixture().sample(0, Window(np.array([20, 21], np.int32), np.array([0, 2], np.int32)))
    with pytest.raises(ValueError, match="at most 4 are allowed"):
        make_mixture(window=4).sample(0, make_window([20, 21, 22]))

"""Attention segment by segment against the dense formula, and what a token may depend on."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glm_kernels.attention import Visibility, attention
from glm_kernels.attention.reference import attention_reference
from glm_kernels.dropout import DropoutKey, RowKeys, Site
from glm_kernels.dropout.masks import attention_drops

HEADS, HEAD_DIM = 3, 8
KEY = DropoutKey(seed=1, layer=2, site=Site.ATTENTION)


def make_row(shapes, padding):
    segments, start = [], 0
    for part_a, part_b in shapes:
        segments.append((start, part_a, start + part_a + part_b))
        start += part_a + part_b
    return Visibility.from_segments(segments, start + padding)


def make_inputs(length, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = (torch.randn(length, HEADS, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(4))
    *inputs, upstream = (x.to(dtype) for x in draw)
    return [x.requires_grad_() for x in inputs], upstream


def results(function, inputs, upstream):
    output = function(*inputs)
    return output, *torch.autograd.grad(output, inputs, upstream)


def dense_drops(visibility, sample_starts, probability):
    """The masks of all segments, put where they belong: bool [heads, T, T]."""
    T = visibility.length
    dense = torch.zeros(HEADS, T, T, dtype=torch.bool)
    for start, part_a, end in visibility.segments:
        begin, sample = max((begin, sample) for begin, sample in sample_starts if begin <= start)
        n, boundary = end - start, start + part_a
        area = part_a * part_a
        drops = attention_drops(
            probability, HEADS, area + (n - part_a) * n, sample=sample, place=start - begin, key=KEY
        )
        dense[:, start:boundary, start:boundary] = drops[:, :area].view(HEADS, part_a, part_a)
        dense[:, boundary:end, start:end] = drops[:, area:].view(HEADS, n - part_a, n)
    return dense


shapes = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(any), min_size=1, max_size=5)


@settings(deadline=None, max_examples=60)
@given(shapes=shapes, padding=st.integers(0, 6))
def test_outputs_and_gradients_are_those_of_the_dense_formula(shapes, padding):
    visibility = make_row(shapes, padding)
    inputs, upstream = make_inputs(visibility.length)
    fast = results(lambda q, k, v: attention(q, k, v, visibility), inputs, upstream)
    plain = results(lambda q, k, v: attention_reference(q, k, v, visibility.dense()), inputs, upstream)
    for got, expected in zip(fast, plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(shapes=shapes, padding=st.integers(0, 6), cut=st.integers(0, 4))
def test_with_dropout_too(shapes, padding, cut):
    visibility = make_row(shapes, padding)
    # Two samples: the segments before the cut, and the rest.
    boundary = visibility.segments[min(cut, len(shapes) - 1)][0]
    end = visibility.segments[-1][2]
    keys = RowKeys.from_lengths([5, 9], [boundary, end - boundary], visibility.length)
    dropped = dense_drops(visibility, [(0, 5), (boundary, 9)] if boundary else [(0, 9)], 0.3)
    inputs, upstream = make_inputs(visibility.length)

    def fast(query, key, value):
        return attention(query, key, value, visibility, dropout=0.3, row_keys=keys, dropout_key=KEY)

    def plain(query, key, value):
        return attention_reference(query, key, value, visibility.dense(), dropout=0.3, dropped=dropped)

    for got, expected in zip(results(fast, inputs, upstream), results(plain, inputs, upstream), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_long_row_in_the_precision_of_a_run(dtype, bound, dropout):
    visibility = make_row([(120, 40), (30, 90), (64, 0), (1, 20)], 19)
    end = visibility.segments[-1][2]
    keys = RowKeys.from_lengths([4], [end], visibility.length)
    inputs, upstream = make_inputs(visibility.length, dtype)
    dropped = dense_drops(visibility, [(0, 4)], dropout)

    def fast(query, key, value):
        return attention(query, key, value, visibility, dropout=dropout, row_keys=keys, dropout_key=KEY)

    def plain(query, key, value):
        return attention_reference(query, key, value, visibility.dense(), dropout=dropout, dropped=dropped)

    exact = [x.detach().double().requires_grad_() for x in inputs]
    for got, expected in zip(results(fast, inputs, upstream), results(plain, exact, upstream.double()), strict=True):
        assert got.dtype == dtype
        assert (got.double() - expected).abs().max() <= bound * expected.abs().max()


def influence(visibility, dropout):
    """Which inputs (columns) each output row depends on, by gradients: bool [T, T]."""
    inputs, _ = make_inputs(visibility.length)
    end = visibility.segments[-1][2]
    keys = RowKeys.from_lengths([0], [end], visibility.length)
    output = attention(*inputs, visibility, dropout=dropout, row_keys=keys, dropout_key=KEY)
    return torch.stack(
        [torch.autograd.grad(row.sum(), inputs[2], retain_graph=True)[0].abs().sum((1, 2)) > 0 for row in output]
    )


def test_part_a_never_sees_b_nor_b_a_later_b_nor_anything_another_segment():
    visibility = make_row([(4, 5), (3, 6)], 3)
    assert torch.equal(influence(visibility, 0.0), visibility.dense())
    with_dropout = influence(visibility, 0.5)
    assert not (with_dropout & ~visibility.dense()).any()


def test_padding_rows_are_zero():
    visibility = make_row([(4, 5)], 7)
    inputs, _ = make_inputs(visibility.length)
    assert not attention(*inputs, visibility)[9:].any()


def test_a_row_of_padding_alone_keeps_its_graph():
    inputs, upstream = make_inputs(7)
    output = attention(*inputs, make_row([], 7))
    assert not output.any()
    output.backward(upstream)
    assert all(x.grad is not None and not x.grad.any() for x in inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_a_few_at_a_time_are_those_of_all_at_once(dtype, monkeypatch):
    visibility = make_row([(4, 5), (0, 3), (6, 0)], 2)
    keys = RowKeys.from_lengths([1, 2], [9, 9], 20)
    draws = [torch.randn(20, 5, 8, generator=torch.Generator().manual_seed(n)).to(dtype) for n in range(4)]

    def run(cached):
        monkeypatch.setattr("glm_kernels.attention.segments._CACHED_SCORES", cached)
        leaves = [x.requires_grad_() for x in draws[:3]]
        output = attention(*leaves, visibility, dropout=0.4, row_keys=keys, dropout_key=KEY)
        return output, *torch.autograd.grad(output, leaves, draws[3])

    together = run(10**9)
    for cached in (1, 200):  # one head at a time; two of the first segment, all of the second
        assert all(torch.equal(a, b) for a, b in zip(run(cached), together, strict=True))


def test_a_segment_drops_the_same_weights_wherever_its_sample_stands():
    def run(order):
        lengths = {1: 9, 2: 12}
        shapes = {1: [(4, 5)], 2: [(2, 3), (6, 1)]}
        visibility = make_row([shape for sample in order for shape in shapes[sample]], 0)
        keys = RowKeys.from_lengths(order, [lengths[sample] for sample in order], 21)
        parts = {sample: make_inputs(lengths[sample], seed=sample)[0] for sample in order}
        inputs = [torch.cat([parts[sample][i] for sample in order]) for i in range(3)]
        output = attention(*inputs, visibility, dropout=0.4, row_keys=keys, dropout_key=KEY)
        return dict(zip(order, output.split([lengths[sample] for sample in order]), strict=True))

    forth, back = run([1, 2]), run([2, 1])
    for sample in (1, 2):
        torch.testing.assert_close(forth[sample], back[sample], rtol=0, atol=1e-12)


def test_refuses_a_row_of_another_length():
    inputs, _ = make_inputs(5)
    with pytest.raises(ValueError, match="a row of 5 tokens with the visibility of 9"):
        attention(*inputs, make_row([(4, 5)], 0))


def test_refuses_the_dropout_keys_of_another_row():
    inputs, _ = make_inputs(9)
    keys = RowKeys.from_lengths([4], [8], 8)
    with pytest.raises(ValueError, match="a row of 9 tokens with the dropout keys of 8"):
        attention(*inputs, make_row([(4, 5)], 0), dropout=0.1, row_keys=keys, dropout_key=KEY)


def test_refuses_dropout_without_its_keys():
    inputs, _ = make_inputs(9)
    with pytest.raises(ValueError, match="needs row_keys and dropout_key"):
        attention(*inputs, make_row([(4, 5)], 0), dropout=0.1)

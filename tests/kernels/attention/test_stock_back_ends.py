"""The back ends that are stock kernels: what each is given is the mask, and what it cannot do it says."""

import math
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import flex_attention

from glm_kernels.attention import Visibility, flex, varlen
from glm_kernels.attention.flex import BLOCK, block_lists, block_mask, flex_interval_attention
from glm_kernels.attention.masked_sdpa import masked_sdpa_attention
from glm_kernels.attention.reference import attention_reference
from glm_kernels.attention.varlen import flash_calls, flash_varlen, varlen_attention

CPU = torch.device("cpu")
HEADS, HEAD_DIM = 2, 16


def make_row(shapes, padding):
    segments, start = [], 0
    for part_a, part_b in shapes:
        segments.append((start, part_a, start + part_a + part_b))
        start += part_a + part_b
    return Visibility.from_segments(segments, start + padding)


def make_inputs(length, dtype):
    generator = torch.Generator().manual_seed(length)
    *inputs, upstream = (torch.randn(length, HEADS, HEAD_DIM, generator=generator).to(dtype) for _ in range(4))
    return [x.requires_grad_() for x in inputs], upstream


def results(function, inputs, upstream):
    output = function(*inputs)
    return output, *torch.autograd.grad(output, inputs, upstream)


def expected_results(visibility, inputs, upstream):
    exact = [x.detach().double().requires_grad_() for x in inputs]
    return results(lambda q, k, v: attention_reference(q, k, v, visibility.dense()), exact, upstream.double())


def rows_of(max_part):
    shapes = st.lists(st.tuples(st.integers(0, max_part), st.integers(0, max_part)).filter(any), min_size=1, max_size=5)
    return st.builds(make_row, shapes, st.integers(1, 6))


# --- SDPA with a mask -----------------------------------------------------------------------------


@settings(max_examples=40)
@given(rows_of(12))
def test_sdpa_with_a_mask_is_the_dense_formula(visibility):
    inputs, upstream = make_inputs(visibility.length, torch.float32)
    got = results(lambda q, k, v: masked_sdpa_attention(q, k, v, visibility), inputs, upstream)
    for a, b in zip(got, expected_results(visibility, inputs, upstream), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=3e-6)


# --- FlashAttention in two calls ------------------------------------------------------------------


def flash_by_formula(query, key, value, call):
    """What FlashAttention computes for a call, sequence by sequence: causal is aligned at the lower right."""
    outputs = []
    ends = zip(call.query_ends.tolist(), call.key_ends.tolist(), strict=True)
    for (q0, k0), (q1, k1) in pairwise(ends):
        assert 0 < q1 - q0 <= call.longest_query
        assert 0 < k1 - k0 <= call.longest_key
        visible = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool)
        if call.causal:
            visible = visible.tril(diagonal=(k1 - k0) - (q1 - q0))
        scores = torch.einsum("qhd,khd->hqk", query[q0:q1], key[k0:k1]) / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, value[k0:k1]))
    assert (q1, k1) == (len(query), len(key))
    return torch.cat(outputs)


@settings(max_examples=60)
@given(rows_of(9))
def test_two_calls_of_flash_attention_are_the_dense_formula(visibility):
    inputs, upstream = make_inputs(visibility.length, torch.float64)
    with (
        mock.patch.object(varlen, "flash_varlen", return_value=flash_by_formula),
        mock.patch.object(varlen, "refuse_types"),  # the formula computes in fp64
    ):
        got = results(lambda q, k, v: varlen_attention(q, k, v, visibility), inputs, upstream)
    for a, b in zip(got, expected_results(visibility, inputs, upstream), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_row_of_padding_alone_keeps_its_graph():
    inputs, upstream = make_inputs(7, torch.bfloat16)
    with mock.patch.object(varlen, "flash_varlen"):
        output = varlen_attention(*inputs, make_row([], 7))
    assert not output.any()
    output.backward(upstream)
    assert all(x.grad is not None and not x.grad.any() for x in inputs)


def test_a_segment_without_a_part_takes_no_sequence_of_the_call():
    only_a, only_b, both = (0, 4, 4), (4, 0, 7), (7, 2, 12)
    first, second = flash_calls((only_a, only_b, both), CPU)
    assert (first.causal, first.query_ends.tolist(), first.longest_query) == (False, [0, 4, 6], 4)
    assert (second.causal, second.query_ends.tolist(), second.key_ends.tolist()) == (True, [0, 3, 6], [0, 3, 8])
    assert second.query_rows.tolist() == [4, 5, 6, 9, 10, 11]
    assert (second.longest_query, second.longest_key) == (3, 5)
    assert len(flash_calls((only_a,), CPU)) == len(flash_calls((only_b,), CPU)) == 1


def test_either_flash_attention_is_asked_for_the_same(monkeypatch):
    # Neither runs here: their arguments are compared with their documented order and names.
    _, call = flash_calls(((0, 2, 5),), CPU)
    x = torch.zeros(5, 1, 8)
    asked = mock.Mock()
    monkeypatch.setitem(__import__("sys").modules, "flash_attn", mock.Mock(flash_attn_varlen_func=asked))
    varlen._of_flash_attn(x, x, x, call)
    assert asked.call_args.args[3:] == (call.query_ends, call.key_ends, 3, 5)
    assert asked.call_args.kwargs == {"causal": True}
    with mock.patch("torch.nn.attention.varlen.varlen_attn", autospec=True) as asked:
        varlen._of_torch(x, x, x, call)
    assert asked.call_args.args[3:] == (call.query_ends, call.key_ends, 3, 5)
    assert asked.call_args.kwargs == {"window_size": (-1, 0)}


# --- FlexAttention --------------------------------------------------------------------------------


def blocks_of(visible):
    """For each block of a dense mask whether any of its points, and whether all, are visible: bool [B, B] twice."""
    length = len(visible)
    starts = range(0, length, BLOCK)
    areas = [[visible[i : i + BLOCK, j : j + BLOCK] for j in starts] for i in starts]
    touched = torch.tensor([[bool(area.any()) for area in row] for row in areas])
    # The last block may be shorter than 128 keys; it is masked in any case.
    whole = torch.tensor([[bool(area.all()) and area.shape[1] == BLOCK for area in row] for row in areas])
    return touched, whole


def unlisted(numbers, indices):
    chosen = np.zeros(indices.shape, dtype=bool)
    for row, number in enumerate(numbers):
        chosen[row, indices[row, :number]] = True
    return torch.from_numpy(chosen)


@settings(max_examples=25)
@given(rows_of(200))
def test_the_lists_of_blocks_are_those_of_the_dense_mask(visibility):
    dense = visibility.dense()
    for starts, ends, visible in (
        (visibility.key_start, visibility.key_end, dense),
        (visibility.query_start, visibility.query_end, dense.T),
    ):
        partial_numbers, partial, whole_numbers, whole = block_lists(starts.numpy(), ends.numpy())
        expected_touched, expected_whole = blocks_of(visible)
        assert torch.equal(unlisted(whole_numbers, whole), expected_whole)
        assert torch.equal(unlisted(partial_numbers, partial), expected_touched & ~expected_whole)


def test_the_mask_of_a_partial_block_is_the_visibility():
    visibility = make_row([(100, 60), (3, 150)], 20)
    mask = block_mask(visibility)
    row, column = torch.meshgrid(torch.arange(333), torch.arange(333), indexing="ij")
    assert torch.equal(mask.mask_mod(None, None, row, column), visibility.dense())
    assert mask.shape == (1, 1, 333, 333)


def test_neither_another_mask_nor_another_length_is_compiled_anew(monkeypatch):
    counter = CompileCounter()
    compiled = torch.compile(flex_attention, backend=counter, dynamic=True)
    monkeypatch.setattr(flex, "_compiled", lambda: compiled)
    compiles = []
    for shapes, padding in ([(250, 50)], 20), ([(100, 60), (3, 150)], 7), ([(512, 100)], 28), ([(20, 40)] * 12, 48):
        with torch.no_grad():
            visibility = make_row(shapes, padding)
            flex_interval_attention(*make_inputs(visibility.length, torch.float32)[0], visibility)
        compiles.append(counter.frame_count)
    assert compiles == [1, 1, 1, 1]


@pytest.mark.slow  # compiling takes half a minute
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flex_attention_forward_is_the_dense_formula(dtype):
    for visibility in (make_row([(100, 60), (3, 150)], 20), make_row([(300, 120)], 28)):
        inputs, _ = make_inputs(visibility.length, dtype)
        with torch.no_grad():
            got = flex_interval_attention(*inputs, visibility)
            expected = attention_reference(*(x.double() for x in inputs), visibility.dense())
        assert (got.double() - expected).abs().max() < (2e-6 if dtype == torch.float32 else 2e-2)


# --- what they cannot do --------------------------------------------------------------------------


@pytest.mark.parametrize("back_end", [masked_sdpa_attention, varlen_attention, flex_interval_attention])
def test_no_stock_kernel_takes_dropout(back_end):
    inputs, _ = make_inputs(9, torch.float32)
    with pytest.raises(ValueError, match=r"no keyed dropout, got dropout 0\.1; use triton, segments or reference"):
        back_end(*inputs, make_row([(4, 5)], 0), dropout=0.1)


def test_varlen_needs_half_precision_and_a_gpu():
    inputs, _ = make_inputs(9, torch.float32)
    with pytest.raises(ValueError, match="flash-varlen computes in bfloat16, float16, got float32"):
        varlen_attention(*inputs, make_row([(4, 5)], 0))
    with pytest.raises(ValueError, match="needs a GPU, the row is on cpu; use segments"):
        varlen_attention(*(x.bfloat16() for x in inputs), make_row([(4, 5)], 0))
    assert callable(flash_varlen(torch.device("cuda", 0)))


def test_flex_has_no_gradients_on_a_cpu():
    inputs, _ = make_inputs(9, torch.float32)
    with pytest.raises(ValueError, match="flex has no gradients on a CPU; use segments"):
        flex_interval_attention(*inputs, make_row([(4, 5)], 0))
    with pytest.raises(ValueError, match="flex computes in float32, bfloat16, float16, got float64"):
        flex_interval_attention(*(x.double() for x in inputs), make_row([(4, 5)], 0))


def test_a_row_is_laid_out_once_for_all_layers():
    flex._block_lists.cache_clear()
    visibility = make_row([(100, 60)], 4)
    for _ in range(3):
        block_mask(visibility)
    assert flex._block_lists.cache_info().misses == 1

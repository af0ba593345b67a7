"""The attention kernels, in Triton's interpreter, against the formula in fp64."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glm_kernels.attention.launch import Dropping, Intervals, launch_backward, launch_forward
from glm_kernels.dropout import RowKeys
from tests.kernels.attention.cases import (
    KEY,
    assert_as_exact_as_torch,
    dropped,
    from_rows,
    glm,
    inputs,
    mask,
    plain,
    tile,
)

MASKS = ("full", "causal", "prefix", "document", "window", "packed", "padding", "empty rows")


def intervals_of(visibility):
    return Intervals(visibility.key_start, visibility.key_end, visibility.query_start, visibility.query_end)


def run(tensors, visibility, tiles=(32, 32), dropping=None, grad_log_sum_exp=None):
    """Output, gradients and log-sum-exp of the kernels."""
    *qkv, upstream = tensors
    intervals, chosen = intervals_of(visibility), tile(*tiles)
    output, log_sum_exp = launch_forward(*qkv, intervals, dropping, tile=chosen)
    grads = launch_backward(
        upstream, *qkv, output, log_sum_exp, grad_log_sum_exp, intervals, dropping, tiles=(chosen, chosen)
    )
    return [output, *grads], log_sum_exp


@pytest.mark.parametrize(
    ("name", "T"), [*product(MASKS, [1, 17, 64]), *product(["packed", "window", "padding"], [97, 150])]
)
def test_any_interval_mask_at_any_length(name, T):
    tensors, visibility = inputs(T, 1, 16), mask(name, T) if T > 1 else glm((0, 1))
    got, _ = run(tensors, visibility)
    assert_as_exact_as_torch(got, tensors, visibility)


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [
        *product([8, 40, 64, 72, 96, 128], [torch.float32, torch.bfloat16]),
        *product([64, 96, 128], [torch.float16]),
        *product([1, 65, 127], [torch.float32]),
    ],
)
def test_any_size_of_head_in_any_type(head_dim, dtype):
    tensors, visibility = inputs(97, 2, head_dim, dtype), glm((30, 20), (10, 30), padding=7)
    got, _ = run(tensors, visibility, (64, 32))
    assert_as_exact_as_torch(got, tensors, visibility)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_dropout_replayed_from_its_keys(probability, dtype):
    # Part A is long enough for tiles without a mask, in both directions.
    visibility = glm((40, 20), (10, 20), padding=7)
    row_keys = RowKeys.from_lengths([2**40, 5], [60, 30], 97)
    tensors = inputs(97, 2, 96, dtype)
    dropping = Dropping(probability, row_keys.token_key, row_keys.token, KEY, first_head=3)
    got, _ = run(tensors, visibility, (16, 16), dropping)
    drops = dropped(row_keys, probability, range(3, 5))
    assert_as_exact_as_torch(got, tensors, visibility, probability=probability, drops=drops)


def test_a_row_of_many_tiles():
    tensors, visibility = inputs(257, 1, 64), glm((150, 60), (0, 20), (20, 0))
    visibility_and_padding = glm((150, 60), (0, 20), (20, 0), padding=7)
    assert visibility.length == 250
    got, _ = run(tensors, visibility_and_padding, (64, 64))
    assert_as_exact_as_torch(got, tensors, visibility_and_padding)


@st.composite
def interval_masks(draw):
    """Rows whose intervals never move left, some of them empty, wherever their borders fall."""
    T = draw(st.integers(1, 40))
    ascending = st.lists(st.integers(0, T), min_size=T, max_size=T).map(sorted)
    start, length = np.array(draw(ascending)), np.array(draw(ascending))
    end = np.maximum(start, length)
    empty = np.array(draw(st.lists(st.booleans(), min_size=T, max_size=T))) & draw(st.booleans())
    end[empty] = start[empty]
    return from_rows(start, end)


@settings(max_examples=15)
@given(visibility=interval_masks(), tiles=st.sampled_from([(16, 16), (16, 32), (32, 16)]))
def test_random_intervals(visibility, tiles):
    tensors = inputs(visibility.length, 1, 16)
    got, log_sum_exp = run(tensors, visibility, tiles)
    assert_as_exact_as_torch(got, tensors, visibility)
    assert torch.equal(log_sum_exp[0].isinf(), visibility.key_start >= visibility.key_end)


def test_the_size_of_the_tiles_changes_rounding_alone():
    visibility, row_keys = glm((40, 20), (12, 20), padding=4), RowKeys.from_lengths([1, 2], [60, 32], 96)
    tensors = inputs(96, 1, 32)
    dropping = Dropping(0.4, row_keys.token_key, row_keys.token, KEY, first_head=0)
    first, _ = run(tensors, visibility, (16, 16), dropping)
    for tiles in [(16, 64), (64, 32)]:
        for got, expected in zip(run(tensors, visibility, tiles, dropping)[0], first, strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=4e-6)


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_a_rank_with_some_heads_computes_what_all_heads_do(probability):
    visibility, row_keys = glm((20, 12), padding=8), RowKeys.from_lengths([3], [32], 40)
    tensors = inputs(40, 4, 16)

    def of_heads(first, stop):
        dropping = Dropping(probability, row_keys.token_key, row_keys.token, KEY, first_head=first)
        some = [x[:, first:stop] for x in tensors]
        return run(some, visibility, (16, 16), dropping if probability else None)[0]

    whole, parts = of_heads(0, 4), [of_heads(0, 1), of_heads(1, 4)]
    for result, *slices in zip(whole, *parts, strict=True):
        assert torch.equal(result, torch.cat(slices, dim=1))


@pytest.mark.parametrize("layout", ["heads first", "transposed features", "expanded gradient"])
def test_any_strides(layout):
    visibility = glm((20, 12), padding=8)
    tensors = inputs(40, 2, 16)
    expected, _ = run([x.contiguous() for x in tensors], visibility)
    match layout:
        case "heads first":
            strange = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in tensors]
        case "transposed features":
            strange = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
        case "expanded gradient":
            tensors[3] = torch.ones(())
            expected, _ = run([x.expand(40, 2, 16).contiguous() for x in tensors], visibility)
            strange = [*tensors[:3], tensors[3].expand(40, 2, 16)]
    got, _ = run(strange, visibility)
    for result, right in zip(got, expected, strict=True):
        assert torch.equal(result, right)


def test_who_sees_nothing_gets_zeros_and_gives_none():
    visibility = mask("empty rows", 50)
    tensors = inputs(50, 2, 16)
    (output, dq, _, _), log_sum_exp = run(tensors, visibility)
    empty = visibility.key_start >= visibility.key_end
    assert empty.sum() == 10
    assert not output[empty].any()
    assert not dq[empty].any()
    assert (log_sum_exp[:, empty] == torch.inf).all()
    assert not log_sum_exp[:, ~empty].isinf().any()


def test_padding_takes_no_part():
    visibility = glm((20, 12), padding=8)
    tensors = inputs(40, 2, 16)
    clean, _ = run(tensors, visibility)
    assert not any(x[32:].any() for x in clean)
    for x in tensors:
        x[32:] = 1e30
    dirty, _ = run(tensors, visibility)
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))


def test_large_scores_do_not_overflow():
    visibility = glm((40, 20), padding=4)
    query, key, value, upstream = inputs(64, 1, 64)
    tensors = [query * 30, key * 30, value, upstream]
    got, _ = run(tensors, visibility)
    exact = plain(tensors, visibility, torch.float64)
    assert (got[0].double() - exact[0]).abs().max() < 1e-3
    assert all(x.isfinite().all() for x in got)


def test_the_log_sum_exp_is_that_of_the_scores_and_has_a_gradient():
    visibility = glm((20, 12))
    tensors = inputs(32, 2, 16)
    query, key = (x.detach().double().requires_grad_() for x in tensors[:2])
    scores = torch.einsum("qhd,khd->hqk", query, key) / 4
    expected = scores.masked_fill(~visibility.dense(), -torch.inf).logsumexp(-1)
    upstream = torch.randn(2, 32)
    tensors[3] = torch.zeros_like(tensors[3])
    (_, dq, dk, dv), got = run(tensors, visibility, grad_log_sum_exp=upstream)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-6)
    for result, right in zip((dq, dk), torch.autograd.grad(expected, [query, key], upstream.double()), strict=True):
        torch.testing.assert_close(result.double(), right, rtol=0, atol=2e-6)
    assert not dv.any()


def test_nothing_is_kept_at_probability_one():
    row_keys = RowKeys.from_lengths([3], [40], 40)
    dropping = Dropping(1.0, row_keys.token_key, row_keys.token, KEY, first_head=0)
    got, _ = run(inputs(40, 1, 16), glm((30, 10)), dropping=dropping)
    assert not any(x.any() for x in got)


def test_the_mask_of_the_kernel_is_the_one_its_keys_say():
    # The values are the unit vectors, so a query's output lists its weights.
    visibility, row_keys = glm((40, 24)), RowKeys.from_lengths([9], [64], 64)
    query, key, _, _ = inputs(64, 2, 64)
    value = torch.eye(64)[:, None].expand(64, 2, 64)
    dropping = Dropping(0.25, row_keys.token_key, row_keys.token, KEY, first_head=5)
    output, _ = launch_forward(query, key, value, intervals_of(visibility), dropping)
    visible = visibility.dense()
    kept = (output != 0).transpose(0, 1)[:, visible]
    assert torch.equal(~kept, dropped(row_keys, 0.25, range(5, 7))[:, visible])
    pairs = kept.numel()
    assert abs(kept.double().mean().item() - 0.75) < 3 * (0.25 * 0.75 / pairs) ** 0.5

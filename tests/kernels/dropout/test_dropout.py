"""Dropout masks are a pure function of run, layer, site, sample and place in the sample."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from glm_kernels.dropout import DropoutKey, RowKeys, Site, dropout_add
from glm_kernels.dropout.masks import attention_drops, hidden_drops
from glm_kernels.dropout.reference import dropout_add_reference

KEY = DropoutKey(seed=3, layer=1, site=Site.MLP_OUTPUT)
WIDTH = 16


@given(st.permutations([(4, 5), (7, 3), (9, 8)]), st.integers(0, 5))
def test_a_sample_drops_the_same_entries_wherever_it_stands(samples, padding):
    keys = RowKeys.from_lengths(*zip(*samples, strict=True), row_length=16 + padding)
    drops = hidden_drops(0.4, WIDTH, keys, KEY)
    for sample, start, end in keys.spans:
        alone = RowKeys.from_lengths([sample], [end - start], end - start)
        assert torch.equal(drops[start:end], hidden_drops(0.4, WIDTH, alone, KEY))
    assert not drops[16:].any()


def test_every_part_of_the_key_changes_the_mask():
    masks = [
        attention_drops(0.5, 2, 200, sample=sample, place=place, key=DropoutKey(seed, layer, site)).numpy()
        for seed, layer, site, sample, place in itertools.product([1, 2], [0, 1], list(Site), [0, 1], [0, 5])
    ]
    assert len({mask.tobytes() for mask in masks}) == len(masks)
    for a, b in itertools.pairwise(masks):
        assert 0.35 < (a == b).mean() < 0.65


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 1.0])
def test_the_probability_is_met(probability):
    keys = RowKeys.from_lengths([0], [1000], 1000)
    drops = hidden_drops(probability, 100, keys, KEY)
    assert binomtest(int(drops.sum()), drops.numel(), probability).pvalue > 1e-3
    if 0 < probability < 1:
        columns = drops.double().mean(dim=0).numpy()
        assert np.abs(columns - probability).max() < 5 * np.sqrt(probability * (1 - probability) / 1000)


def test_masks_are_frozen():
    # A run in progress depends on them: a change here breaks its resume.
    mask = attention_drops(0.5, 1, 12, sample=7, place=0, key=KEY)
    assert mask.int().flatten().tolist() == [1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_torchs_generator_is_neither_read_nor_moved():
    keys = RowKeys.from_lengths([0], [8], 8)
    state = torch.get_rng_state()
    first = hidden_drops(0.5, WIDTH, keys, KEY)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(99)
    assert torch.equal(first, hidden_drops(0.5, WIDTH, keys, KEY))


@pytest.mark.parametrize("with_residual", [True, False])
def test_outputs_and_gradients_are_those_of_the_formula(with_residual):
    keys = RowKeys.from_lengths([5, 2], [6, 3], 12)
    x = torch.randn(12, WIDTH, dtype=torch.float64, requires_grad=True)
    residual = torch.randn(12, WIDTH, dtype=torch.float64, requires_grad=True) if with_residual else None
    upstream = torch.randn(12, WIDTH, dtype=torch.float64)
    inputs = [x, residual] if with_residual else [x]
    dropped = hidden_drops(0.3, WIDTH, keys, KEY)
    got = dropout_add(x, residual, probability=0.3, row_keys=keys, key=KEY)
    expected = dropout_add_reference(x, residual, probability=0.3, dropped=dropped)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(got, inputs, upstream), torch.autograd.grad(expected, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_some_tokens_of_a_row_are_dropped_as_in_the_whole_row():
    keys, places = RowKeys.from_lengths([5, 2], [6, 3], 12), torch.tensor([7, 1, 11])
    x, residual = torch.randn(12, WIDTH), torch.randn(12, WIDTH)
    whole = dropout_add(x, residual, probability=0.3, row_keys=keys, key=KEY)
    some = dropout_add(x[places], residual[places], probability=0.3, row_keys=keys, key=KEY, places=places)
    assert torch.equal(some, whole[places])


def test_the_extreme_probabilities_keep_all_and_nothing():
    keys = RowKeys.from_lengths([5], [4], 4)
    x, residual = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
    assert torch.equal(dropout_add(x, residual, probability=0.0, row_keys=keys, key=KEY), residual + x)
    assert torch.equal(dropout_add(x, None, probability=0.0, row_keys=keys, key=KEY), x)
    assert torch.equal(dropout_add(x, residual, probability=1.0, row_keys=keys, key=KEY), residual)


def test_row_keys_name_each_token_of_each_sample():
    keys = RowKeys.from_lengths([40, 41, 7], [2, 0, 3], 7).to("cpu")
    assert keys.sample.tolist() == [40, 40, 7, 7, 7, -1, -1]
    assert keys.token.tolist() == [0, 1, 0, 1, 2, 0, 0]
    assert keys.spans == ((40, 0, 2), (7, 2, 5))
    assert len(set(keys.token_key[:5].tolist())) == 5
    assert keys.token_key.dtype == torch.int64
    assert (keys.sample.dtype, keys.token.dtype) == (torch.int64, torch.int32)

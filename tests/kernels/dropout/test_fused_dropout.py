"""Dropout with the residual sum in a kernel: its masks, its exactness, and what it keeps for the backward pass."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

from glm_kernels.dropout import DropoutKey, RowKeys, Site, dropout_add
from glm_kernels.dropout.fused import fused_dropout_add
from glm_kernels.dropout.philox_reference import hidden_kept
from glm_kernels.dropout.reference import dropout_add_reference
from glm_kernels.tiles import Tile, trying
from tests.kernels.accuracy import COMPILERS, TYPES, assert_accurate, values_and_gradients

KEY = DropoutKey(seed=3, layer=1, site=Site.MLP_OUTPUT)


def make_keys(*lengths, padding=3):
    return RowKeys.from_lengths(range(7, 7 + len(lengths)), lengths, sum(lengths) + padding)


def fused(keys, probability=0.3, key=KEY, places=None):
    def function(x, residual=None):
        return dropout_add(
            x, residual, probability=probability, row_keys=keys, key=key, places=places, backend="triton"
        )

    return function


def mask(keys, width, probability=0.3, key=KEY, places=None):
    """What the kernel keeps: bool [T, width], read off ones."""
    ones = torch.ones(len(keys.sample) if places is None else len(places), width)
    return fused(keys, probability, key, places)(ones) != 0


def replayed(keys, width, probability=0.3):
    """The formula with the mask of the NumPy reference."""
    kept = torch.from_numpy(hidden_kept(probability, keys.token_key.numpy(), width, key=KEY))

    def function(x, residual=None):
        return dropout_add_reference(x, residual, probability=probability, dropped=~kept)

    return function


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize(("lengths", "width"), [((1,), 1), ((5, 9), 30), ((3,), 256), ((61, 2), 257), ((4,), 516)])
def test_values_and_gradients_are_those_of_the_formula_with_the_mask_replayed(dtype, with_residual, lengths, width):
    keys = make_keys(*lengths)
    x, residual, upstream = (torch.randn(len(keys.sample), width).to(dtype) for _ in range(3))
    inputs = [x, residual] if with_residual else [x]
    assert_accurate(fused(keys), replayed(keys, width), inputs, upstream)


def test_a_residual_of_another_type_keeps_its_own():
    keys = make_keys(9)
    x, residual = torch.randn(12, 20).bfloat16(), torch.randn(12, 20)
    value, of_x, of_residual = values_and_gradients(fused(keys), [x, residual], torch.randn(12, 20))
    assert (value.dtype, of_x.dtype, of_residual.dtype) == (torch.float32, torch.bfloat16, torch.float32)
    torch.testing.assert_close(value, replayed(keys, 20)(x.float(), residual))


def test_any_strides_will_do():
    keys, wide = make_keys(17), torch.randn(3, 40, 48)
    for view in (wide[0, ::2, 1:25], wide[0, :20, ::2], wide[0].t()[:20, :24], wide[:1, :1, :24].expand(1, 20, 24)[0]):
        got = values_and_gradients(fused(keys), [view, view], view)
        dense = values_and_gradients(fused(keys), [view.contiguous()] * 2, view.contiguous())
        assert all(torch.equal(a, b) for a, b in zip(got, dense, strict=True))


@settings(max_examples=8)
@given(st.permutations([(4, 5), (7, 3), (9, 8)]), st.integers(0, 5))
def test_a_sample_keeps_the_same_entries_wherever_it_stands(samples, padding):
    keys = RowKeys.from_lengths(*zip(*samples, strict=True), row_length=16 + padding)
    whole = mask(keys, 12)
    for sample, start, end in keys.spans:
        alone = RowKeys.from_lengths([sample], [end - start], end - start)
        assert torch.equal(whole[start:end], mask(alone, 12))


@settings(max_examples=8)
@given(st.lists(st.integers(0, 15), max_size=20))
def test_some_tokens_of_a_row_are_dropped_as_in_the_whole_row(places):
    keys, places = make_keys(6, 7), torch.tensor(places, dtype=torch.int64)
    x, residual, upstream = torch.randn(3, 16, 12)
    whole = values_and_gradients(fused(keys), [x, residual], upstream)
    some = values_and_gradients(fused(keys, places=places), [x[places], residual[places]], upstream[places])
    assert all(torch.equal(a, b[places]) for a, b in zip(some, whole, strict=True))


def test_two_halves_of_a_row_are_dropped_as_the_whole():
    keys = make_keys(20, 9)
    halves = [mask(keys, 12, places=places) for places in torch.arange(32).chunk(2)]
    assert torch.equal(torch.cat(halves), mask(keys, 12))


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_the_share_that_is_kept_is_the_one_asked_for(probability):
    kept = mask(make_keys(200, 55, padding=1), 256, probability).double()
    sigma = np.sqrt(probability * (1 - probability))
    assert abs(kept.mean() - (1 - probability)) < 3 * sigma / np.sqrt(kept.numel())
    for word in range(4):  # of the generator, each decides about every fourth feature
        of_word = kept[:, word::4]
        assert abs(of_word.mean() - (1 - probability)) < 3.5 * sigma / np.sqrt(of_word.numel())
    assert (kept.mean(dim=0) - (1 - probability)).abs().max() < 5 * sigma / np.sqrt(256)
    assert (kept.mean(dim=1) - (1 - probability)).abs().max() < 5 * sigma / np.sqrt(256)


def test_every_part_of_the_key_changes_the_mask():
    masks = [
        mask(RowKeys.from_lengths([sample], [4], 4), 100, 0.5, DropoutKey(seed, layer, site)).numpy()
        for seed, layer, site, sample in itertools.product([1, 2], [0, 1], list(Site)[::2], [0, 1])
    ]
    for a, b in itertools.combinations(masks, 2):
        assert 0.35 < (a == b).mean() < 0.65


def test_masks_are_frozen():
    # A run in progress depends on them: a change here breaks its resume.
    kept = mask(RowKeys.from_lengths([7], [2], 2), 8, 0.5)
    assert kept.int().tolist() == [[1, 1, 0, 0, 0, 1, 0, 1], [0, 1, 0, 1, 1, 1, 1, 1]]


def test_the_extreme_probabilities_keep_all_and_nothing():
    keys, (x, residual) = make_keys(5), torch.randn(2, 8, 12)
    assert torch.equal(fused(keys, 0.0)(x, residual), residual + x)
    assert torch.equal(fused(keys, 1.0)(x, residual), residual)
    assert torch.equal(fused(keys, 1e-12)(x, None), x)


def test_keys_and_places_may_have_any_strides():
    keys, places = make_keys(6, 7), torch.tensor([3, 0, 9, 0, 5, 0])[::2]
    strided = RowKeys(keys.sample, keys.token, torch.stack([keys.token_key] * 2, dim=1)[:, 0], keys.spans)
    assert torch.equal(mask(strided, 12, places=places), mask(keys, 12)[[3, 9, 5]])


def test_an_empty_row_has_an_empty_result_and_gradient():
    keys = RowKeys.from_lengths([], [], 0)
    value, gradient = values_and_gradients(fused(keys), [torch.empty(0, 12)], torch.empty(0, 12))
    assert value.shape == gradient.shape == (0, 12)


@pytest.mark.parametrize("blocks", [(1, 32), (16, 64), (2, 1024)])
def test_the_tile_changes_no_bit(blocks):
    keys, (x, residual, upstream) = make_keys(2, 4), torch.randn(3, 9, 100)
    expected = values_and_gradients(fused(keys), [x, residual], upstream)
    with trying({"dropout_add": Tile(dict(zip(("BLOCK_T", "BLOCK_H"), blocks, strict=True)), 4, 1)}):
        got = values_and_gradients(fused(keys), [x, residual], upstream)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_nothing_but_keys_is_saved_for_the_backward_pass():
    keys, saved = make_keys(10), []
    x, residual = (torch.randn(13, 64, requires_grad=True) for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        fused(keys)(x, residual)
    assert [(t.dtype, t.shape) for t in saved] == [(torch.int64, (13,))]


# --- as an operation of torch ---------------------------------------------------------------------


def operation_inputs(places):
    keys = make_keys(6)
    chosen = None if places is None else torch.tensor(places)
    x, residual = (torch.randn(9 if places is None else len(places), 12, requires_grad=True) for _ in range(2))
    return x, residual, keys.token_key, chosen, KEY.philox_key(), 0.3


@pytest.mark.parametrize("places", [None, [4, 0, 8]])
def test_it_is_a_well_formed_operation(places):
    opcheck(fused_dropout_add, operation_inputs(places))
    x, _, *rest = operation_inputs(places)
    opcheck(fused_dropout_add, (x, None, *rest))


@COMPILERS
def test_compiled_as_one_graph_it_gives_the_same_bits(compiler):
    keys, (x, residual, upstream) = make_keys(13), torch.randn(3, 16, 20)
    expected = values_and_gradients(fused(keys), [x, residual], upstream)
    compiled = torch.compile(fused(keys), fullgraph=True, backend=compiler)
    got = values_and_gradients(compiled, [x, residual], upstream)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_rows_of_other_lengths_need_no_compilation_of_their_own():
    frames, counter = set(), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(fused_dropout_add, fullgraph=True, dynamic=True, backend=counter)
    for length in (6, 13, 40):
        x = torch.randn(length, 20, requires_grad=True)
        compiled(x, None, torch.arange(length), None, KEY.philox_key(), 0.3).sum().backward()
        frames.add(counter.frame_count)
    assert len(frames) == 1


def test_recomputed_activations_drop_the_same():
    keys, (x, residual, upstream) = make_keys(13), torch.randn(3, 16, 20)

    def block(x, residual):
        return fused(keys)(torch.tanh(fused(keys, 0.5)(x, residual)), residual)

    plain = values_and_gradients(block, [x, residual], upstream)
    again = values_and_gradients(lambda *a: checkpoint(block, *a, use_reentrant=False), [x, residual], upstream)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))

"""The generator of the kernels against the published answers, and their masks against its plain form."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from glm_kernels.dropout import DropoutKey, RowKeys, Site
from glm_kernels.dropout.keys import drop_threshold
from glm_kernels.dropout.philox import counter_words, draw, kept
from glm_kernels.dropout.philox_reference import attention_kept, philox

# Counter, key and output of Philox4x32-7, from the known-answer tests of Random123 (Salmon et al.).
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "5f6fb709 0d893f64 4f121f81 4f730a48"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "5207ddc2 45165e59 4d8ee751 8c52f662"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "4dfccaba 190a87f0 c47362ba b6b5242a"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


@triton.jit
def draw_kernel(words, key):
    counter = tl.load(words + tl.arange(0, 4)[None, :] + tl.zeros([16, 1], tl.int32))
    one = tl.arange(0, 4)[None, :]
    low, high = tl.sum(tl.where(one == 0, counter, 0), axis=1), tl.sum(tl.where(one == 1, counter, 0), axis=1)
    third, fourth = tl.sum(tl.where(one == 2, counter, 0), axis=1), tl.sum(tl.where(one == 3, counter, 0), axis=1)
    a, b, c, d = draw(key, low, high, third, fourth)
    first = tl.arange(0, 16) == 0
    place = words + tl.zeros([16], tl.int32)
    tl.store(place, a.to(tl.int32, bitcast=True), mask=first)
    tl.store(place + 1, b.to(tl.int32, bitcast=True), mask=first)
    tl.store(place + 2, c.to(tl.int32, bitcast=True), mask=first)
    tl.store(place + 3, d.to(tl.int32, bitcast=True), mask=first)


@triton.jit
def mask_kernel(token_key, token, mask, key, threshold, head, T: tl.constexpr):
    index = tl.arange(0, T)
    low, high = counter_words(tl.load(token_key + index))
    word, _, _, _ = draw(key, low[:, None], high[:, None], tl.load(token + index)[None, :], head)
    tl.store(mask + index[:, None] * T + index[None, :], kept(word, threshold))


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_known_answers(counter, key, output):
    low, high = words(key)
    counter, output = words(counter), words(output)
    got = philox(high << 32 | low, tuple(np.array([word], np.uint64) for word in counter))
    assert [int(word[0]) for word in got] == output
    signed = torch.tensor(counter, dtype=torch.int64).to(torch.int32)
    key = high << 32 | low
    draw_kernel[(1,)](signed, key - (key >> 63 << 64))
    assert [word & 0xFFFFFFFF for word in signed.tolist()] == output


@pytest.mark.parametrize("key", [7, -7, -(2**63)])
def test_a_key_is_one_of_64_bits_however_few_it_needs(key):
    counter = [1, 2, 3, 4]
    expected = philox(key, tuple(np.array([word], np.uint64) for word in counter))
    signed = torch.tensor(counter, dtype=torch.int32)
    draw_kernel[(1,)](signed, key)
    assert [word & 0xFFFFFFFF for word in signed.tolist()] == [int(word[0]) for word in expected]


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.6, 1.0])
def test_a_kernel_draws_the_mask_of_the_reference(probability):
    row_keys = RowKeys.from_lengths([5, 2**40], [20, 40], 64)
    key = DropoutKey(2**63 - 1, 3, Site.ATTENTION)
    mask = torch.empty(64, 64, dtype=torch.bool)
    threshold = drop_threshold(probability)
    mask_kernel[(1,)](row_keys.token_key, row_keys.token, mask, key.philox_key(), threshold, 9, T=64)
    expected = attention_kept(
        probability, row_keys.token_key.numpy(), row_keys.token.numpy(), heads=range(9, 10), key=key
    )
    assert np.array_equal(mask.numpy(), expected[0])


def test_masks_are_frozen():
    # A run in progress depends on them: a change here breaks its resume.
    row_keys = RowKeys.from_lengths([7], [6], 6)
    key = DropoutKey(3, 1, Site.ATTENTION)
    mask = attention_kept(0.5, row_keys.token_key.numpy(), row_keys.token.numpy(), heads=range(1), key=key)
    assert mask[0].astype(int).tolist() == [
        [0, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 1, 1],
        [1, 1, 0, 1, 0, 1],
        [0, 0, 1, 0, 0, 0],
        [0, 1, 0, 1, 0, 0],
        [0, 0, 0, 1, 0, 0],
    ]


def test_the_probability_is_met_in_every_query_key_and_head():
    row_keys = RowKeys.from_lengths(range(4), [128] * 4, 512)
    key = DropoutKey(1, 1, Site.ATTENTION)
    mask = attention_kept(0.1, row_keys.token_key.numpy(), row_keys.token.numpy()[:128], heads=range(8), key=key)
    sigma = np.sqrt(0.1 * 0.9)
    assert abs(mask.mean() - 0.9) < 3 * sigma / np.sqrt(mask.size)
    for axis in range(3):
        means = mask.mean(axis=tuple({0, 1, 2} - {axis}))
        assert np.abs(means - 0.9).max() < 5 * sigma / np.sqrt(mask.size / len(means))


def test_neighbours_are_dropped_independently():
    row_keys = RowKeys.from_lengths([3], [512], 512)
    key = DropoutKey(1, 1, Site.ATTENTION)
    per_token = (row_keys.token_key.numpy(), row_keys.token.numpy())
    mask = attention_kept(0.5, *per_token, heads=range(3), key=key).astype(np.float64) - 0.5
    other = attention_kept(0.5, *per_token, heads=range(3), key=DropoutKey(1, 2, Site.ATTENTION)) - 0.5
    pairs = [
        (mask[:, 1:], mask[:, :-1]),
        (mask[:, :, 1:], mask[:, :, :-1]),
        (mask[1:], mask[:-1]),
        (mask, mask.swapaxes(1, 2)[:, ::-1]),
        (mask, other),
    ]
    for a, b in pairs:
        assert abs((a * b).mean() * 4) < 5 / np.sqrt(a.size)


def test_the_threshold_is_a_signed_word():
    assert [drop_threshold(p) for p in (0.0, 0.25, 0.5, 1.0)] == [0, 2**30, -(2**31), -1]

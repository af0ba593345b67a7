"""A fingerprint is that of the values and their places, whoever holds them in whichever pieces."""

import struct
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.checkpoint import fingerprint as module
from megatron_glm.checkpoint.fingerprint import added_up, fingerprint, fingerprints
from megatron_glm.checkpoint.fingerprint_file import fingerprints_from_json, fingerprints_to_json
from megatron_glm.checkpoint.format import Fragment
from megatron_glm.errors import CheckpointError
from megatron_glm.parallel.cuts import Shard

MASK = (1 << 64) - 1


def plain(values, start=0, rows=1, stride=0):
    """The same in plain Python, an element at a time."""
    total, width = 0, len(values) // rows
    for place, value in enumerate(values):
        position = start + place // width * stride + place % width
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        x = (position * 0x9E3779B97F4A7C15 + bits) & MASK
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
        total += x ^ x >> 31
    return total & MASK


def whole(values):
    return Fragment("w", "weight", 0, values)


@given(
    values=st.lists(st.floats(width=32), min_size=1, max_size=24),
    start=st.integers(0, 2**60),
    rows=st.sampled_from([1, 2, 3]),
    stride=st.integers(8, 2**30),
    at_once=st.integers(1, 30),
)
def test_it_is_the_plain_one_for_any_place_and_size_of_block(values, start, rows, stride, at_once):
    values = values[: len(values) // rows * rows] or values[:1] * rows
    fragment = Fragment("w", "weight", start, torch.tensor(values), rows, stride)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ELEMENTS_AT_ONCE", at_once)
        assert fingerprint(fragment) == plain(fragment.values.tolist(), start, rows, stride)


def test_it_is_frozen():
    # Checkpoints store these: a change here makes all of them look damaged.
    assert fingerprint(whole(torch.tensor([1.0, -0.0, 2.5]))) == 4477078605871185747


@given(cuts=st.lists(st.integers(0, 60), max_size=5))
def test_the_parts_of_any_flat_partition_add_up_to_the_whole(cuts):
    values = torch.randn(60, generator=torch.Generator().manual_seed(len(cuts)))
    edges = [0, *sorted(cuts), 60]
    parts = [Fragment("w", "weight", a, values[a:b]) for a, b in pairwise(edges) if b > a]
    assert added_up([fingerprints([part]) for part in parts]) == {"w/weight": fingerprint(whole(values))}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("word_embeddings.weight", (8, 6)),
        ("transformer.layers.0.attention.query_key_value.weight", (24, 8)),
        ("transformer.layers.0.attention.dense.weight", (6, 8)),
        ("transformer.layers.0.mlp.dense_4h_to_h.weight", (4, 16)),
    ],
)
@pytest.mark.parametrize("size", [2, 4])
def test_the_parts_of_tensor_parallel_ranks_add_up_to_the_whole(name, shape, size):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    parts = []
    for rank in range(size):
        shard = Shard.of(name, rank=rank, size=size)
        held = shard.take(values).flatten()
        parts += [
            fingerprints([Fragment(name, "weight", r.start, held[r.offset : r.offset + r.size], r.rows, r.stride)])
            for r in shard.rectangles(shape, 0, held.numel())
        ]
    assert added_up(parts) == {f"{name}/weight": fingerprint(whole(values.flatten()))}


@given(place=st.integers(0, 99), bit=st.integers(0, 31))
def test_any_flipped_bit_shows(place, bit):
    values = torch.arange(100, dtype=torch.float32)
    before = fingerprint(whole(values))
    values.view(torch.int32)[place] ^= 1 << bit if bit < 31 else -(1 << 31)
    assert fingerprint(whole(values)) != before


@given(a=st.integers(0, 99), b=st.integers(0, 99))
def test_two_values_that_change_places_show(a, b):
    values = torch.arange(100, dtype=torch.float32)
    swapped = values.clone()
    swapped[a], swapped[b] = values[b], values[a]
    assert (fingerprint(whole(swapped)) == fingerprint(whole(values))) == (a == b)


def test_the_file_says_what_every_parameter_must_be():
    sums = {"a/weight": 2**64 - 1, "a/exp_avg": 0}
    data = fingerprints_to_json(sums, ["a"])
    assert fingerprints_from_json(data, ["a"], "f") == {**sums, "a/exp_avg_sq": 0}
    with pytest.raises(CheckpointError, match="f: has too few or too many parameters, the first is 'b/exp_avg'"):
        fingerprints_from_json(data, ["a", "b"], "f")


@given(data=st.binary(max_size=40) | st.sampled_from([b"{}", b'{"fingerprints": [1]}', b'{"fingerprints": {"a": 1}}']))
def test_garbage_in_place_of_the_file_is_one_clear_error(data):
    with pytest.raises(CheckpointError, match="f: not a list of fingerprints"):
        fingerprints_from_json(data, ["a"], "f")

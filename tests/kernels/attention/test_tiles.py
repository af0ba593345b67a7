"""The tile tables of attention have an entry for every call, and heads are cut without waste where there is a way."""

from itertools import product

import pytest
import torch

from glm_kernels.attention.compilations import compilations
from glm_kernels.attention.tiles import LARGEST_HEAD, TILES, entry_of, head_parts, tile_for
from glm_kernels.attention.visibility import LONG_SEGMENT
from tests.kernels.attention.cases import glm

TYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    ("head_dim", "parts"),
    [(8, (16, 0)), (16, (16, 0)), (48, (32, 16)), (64, (64, 0)), (72, (64, 16)), (96, (64, 32)), (128, (128, 0))],
)
def test_heads_are_cut_into_powers_of_two(head_dim, parts):
    assert head_parts(head_dim) == parts


def test_the_parts_of_any_head_hold_it_and_at_most_31_more():
    for head_dim in range(1, LARGEST_HEAD + 1):
        first, second = head_parts(head_dim)
        assert all(part == 0 or (part >= 16 and part & (part - 1) == 0) for part in (first, second))
        assert second < first
        next_power = max(16, 1 << (head_dim - 1).bit_length())
        assert head_dim <= first + second <= next_power
        assert first + second - head_dim <= 31


@pytest.mark.parametrize("architecture", TILES)
def test_every_call_has_an_entry_and_every_entry_a_call(architecture):
    calls = product(("forward", "key_value", "query"), range(1, LARGEST_HEAD + 1), TYPES, (False, True), (False, True))
    assert {entry_of(*call) for call in calls} == set(TILES[architecture])


@pytest.mark.parametrize("architecture", TILES)
def test_every_entry_is_compiled_for_the_proof_that_it_fits(architecture):
    found = list(compilations(architecture))
    names = [compilation.name for compilation in found]
    assert len(set(names)) == len(names)
    assert {name.split()[0] for name in names} == {
        *TILES[architecture],
        *(f"attention_delta_d{d}" for d in (64, 96, 128)),
    }
    for compilation in found:
        given = {*compilation.signature, *compilation.constexprs}
        assert given == set(compilation.fn.arg_names)
        assert set(compilation.aligned) <= set(compilation.signature)


def test_long_segments_choose_the_wide_tiles():
    query = torch.empty(64, 2, 64, dtype=torch.bfloat16)
    short, long = (tile_for("forward", query, dropout=False, long_segments=long) for long in (False, True))
    assert short.blocks["BLOCK_M"] * short.blocks["BLOCK_N"] < long.blocks["BLOCK_M"] * long.blocks["BLOCK_N"]
    assert not glm((LONG_SEGMENT - 100, 99)).has_long_segments
    assert glm((LONG_SEGMENT - 100, 100)).has_long_segments
    assert glm((2 * LONG_SEGMENT, 0), *[(100, 20)] * 10, padding=40).has_long_segments
    assert not glm((LONG_SEGMENT, 0), *[(100, 20)] * 40).has_long_segments
    assert not glm(padding=64).has_long_segments

"""The attention kernels on a GPU, by the rules that they pass in the interpreter; and the stock back ends."""

import pytest
import torch

from glm_kernels.attention import Visibility, attention
from glm_kernels.dropout import DropoutKey, RowKeys, Site
from tests.kernels.accuracy import TYPES, assert_accurate, values_and_gradients

KEY = DropoutKey(seed=5, layer=3, site=Site.ATTENTION)
HEADS = 2
# Lengths of part A and part B: one sample; packed ones, whose borders lie anywhere in a tile; parts that are missing.
# Rows of multiples of 16 tokens are one program, as all of training are; another one is compiled for odd ones.
ROWS = {
    "one sample": ([(840, 185)], 63),
    "packed": ([(459, 101), (100, 333), (64, 64), (1, 20), (130, 2)], 6),
    "only A, only B": ([(200, 0), (0, 200), (128, 0)], 0),
}
TOY_ROWS = {
    "one sample": ([(50, 13)], 1),
    "packed": ([(20, 9), (3, 17)], 5),
    "only A, only B": ([(20, 0), (0, 12)], 0),
}


@pytest.fixture(params=ROWS, scope="module")
def row(request, device, rehearsal):
    shapes, padding = (TOY_ROWS if rehearsal else ROWS)[request.param]
    segments, start = [], 0
    for part_a, part_b in shapes:
        segments.append((start, part_a, start + part_a + part_b))
        start += part_a + part_b
    visibility = Visibility.from_segments(segments, start + padding)
    keys = RowKeys.from_lengths(range(len(shapes)), [sum(shape) for shape in shapes], start + padding)
    return visibility.to(device), keys.to(device)


def by(backend, row, dropout=0.0, first_head=0):
    visibility, keys = row

    def function(query, key, value):
        return attention(
            query,
            key,
            value,
            visibility,
            dropout=dropout,
            row_keys=keys,
            dropout_key=KEY,
            first_head=first_head,
            backend=backend,
        )

    return function


def make_inputs(row, head_dim, dtype, device, heads=HEADS):
    generator = torch.Generator().manual_seed(head_dim)
    draws = (torch.randn(row[0].length, heads, head_dim, generator=generator) for _ in range(4))
    *inputs, upstream = (x.to(device, dtype) for x in draws)
    return inputs, upstream


# Each combination is compiled: of the sizes beside 64, which all presets have, some are enough.
CASES = [(64, dtype, dropout) for dtype in TYPES for dropout in (0.0, 0.1)]
CASES += [(size, *case) for size in (96, 128, 40) for case in ((torch.bfloat16, 0.1), (torch.float32, 0.0))]
TOY_CASES = [(64, torch.bfloat16, 0.1), (96, torch.float32, 0.0)]


@pytest.mark.parametrize(("head_dim", "dtype", "dropout"), CASES, ids=str)
def test_values_and_gradients_are_those_of_the_formula(row, head_dim, dtype, dropout, device, rehearsal):
    if rehearsal and (head_dim, dtype, dropout) not in TOY_CASES:
        pytest.skip("tests/kernels has them all in the interpreter")
    inputs, upstream = make_inputs(row, head_dim, dtype, device)
    assert_accurate(by("triton", row, dropout), by("reference", row, dropout), inputs, upstream)


def test_a_row_of_any_length(device):
    visibility = Visibility.from_segments([(0, 50, 81), (81, 0, 99)], 101).to(device)
    row = visibility, RowKeys.from_lengths([4, 2], [81, 18], 101).to(device)
    inputs, upstream = make_inputs(row, 64, torch.bfloat16, device)
    assert_accurate(by("triton", row, 0.1), by("reference", row, 0.1), inputs, upstream)


def test_views_of_a_fused_projection_are_read_as_they_are(row, device):
    T = row[0].length
    projection = torch.randn(T, 3 * HEADS * 64, generator=torch.Generator().manual_seed(1)).to(device, torch.bfloat16)
    views = [x.view(T, HEADS, 64) for x in projection.split(HEADS * 64, dim=1)]
    upstream = torch.randn(T, HEADS, 64, generator=torch.Generator().manual_seed(2)).to(device, torch.bfloat16)
    function = by("triton", row, 0.1)
    of_views = values_and_gradients(function, views, upstream)
    of_copies = values_and_gradients(function, [x.contiguous() for x in views], upstream)
    assert all(torch.equal(a, b) for a, b in zip(of_views, of_copies, strict=True))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_every_repeat_has_the_same_bits(row, dropout, device, repeats):
    inputs, upstream = make_inputs(row, 64, torch.bfloat16, device)
    function = by("triton", row, dropout)
    first = values_and_gradients(function, inputs, upstream)
    for _ in range(repeats - 1):
        again = values_and_gradients(function, inputs, upstream)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_part_of_the_heads_drops_what_they_drop_among_all(row, device):
    inputs, _ = make_inputs(row, 64, torch.bfloat16, device)
    whole = by("triton", row, 0.3)(*inputs)
    second = by("triton", row, 0.3, first_head=1)(*(x[:, 1:] for x in inputs))
    assert torch.equal(second, whole[:, 1:])


@pytest.mark.parametrize("backend", ["segments", "flash-varlen", "flex", "sdpa"])
def test_the_other_back_ends_compute_the_same(row, backend, device, rehearsal):
    if rehearsal and backend in ("flash-varlen", "flex"):
        pytest.skip("has no gradients on a CPU")
    inputs, upstream = make_inputs(row, 64, torch.bfloat16, device)
    assert_accurate(by(backend, row), by("reference", row), inputs, upstream)


def test_compiled_it_is_the_same(row, device, rehearsal):
    inputs, upstream = make_inputs(row, 64, torch.bfloat16, device)
    function = by("triton", row, 0.1)
    compiled = torch.compile(function, fullgraph=True, backend="eager" if rehearsal else "inductor")
    plain = values_and_gradients(function, inputs, upstream)
    assert all(torch.equal(a, b) for a, b in zip(plain, values_and_gradients(compiled, inputs, upstream), strict=True))

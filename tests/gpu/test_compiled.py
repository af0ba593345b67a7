"""What torch.compile writes for norms and GELU on a GPU: as exact as torch, for rows of every length, the same bits."""

import pytest
import torch

from megatron_glm.training.engines.compiled_parts import CompiledParts, bias_gelu, layer_norm
from tests.kernels.accuracy import assert_accurate, values_and_gradients

EPS = 1e-5


@pytest.fixture(scope="module")
def sizes(rehearsal):
    """Width of a norm, and numbers of tokens: Inductor left alone would change its sums at 2,048 and 5,120."""
    return (32, (1, 2, 40)) if rehearsal else (1024, (1, 2, 63, 2047, 2048, 5119, 5120, 16_384))


@pytest.fixture
def parts(compiled_programs, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled_programs))
    torch.compiler.reset()
    yield CompiledParts()
    torch.compiler.reset()


def both(parts, H):
    def compiled_norm(x, weight, bias):
        return parts.norm(x, weight, bias, (H,), EPS)

    def norm(x, weight, bias):
        return layer_norm(x, weight, bias, EPS)

    return [(compiled_norm, norm, H, 2), (parts.bias_gelu, bias_gelu, 4 * H, 1)]


def draw(T, width, vectors, dtype, device):
    generator = torch.Generator().manual_seed(T)
    shapes = [(T, width), *[(width,)] * vectors, (T, width)]
    *inputs, upstream = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    return inputs, upstream


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_parts_are_as_exact_as_torch_for_rows_of_every_length(dtype, sizes, parts, device):
    H, lengths = sizes
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    for compiled, plain, width, vectors in both(parts, H):
        for T in lengths:
            assert_accurate(compiled, plain, *draw(T, width, vectors, dtype, device))
    assert counters["unique_graphs"] - before == 2


def test_their_gradients_have_the_same_bits_every_time(sizes, parts, device, repeats):
    H, lengths = sizes
    for compiled, _, width, vectors in both(parts, H):
        inputs, upstream = draw(lengths[-1], width, vectors, torch.bfloat16, device)
        first = values_and_gradients(compiled, inputs, upstream)
        for _ in range(repeats - 1):
            again = values_and_gradients(compiled, inputs, upstream)
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))

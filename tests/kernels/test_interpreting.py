"""In the interpreter a kernel rounds to bf16 as torch does, which the interpreter itself does not."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from glm_kernels.interpreting import INTERPRETED, loaded, operand, stored

N = 1 << 14


@triton.jit
def round_kernel(x, as_stored, as_operand, DTYPE: tl.constexpr, N: tl.constexpr):
    place = tl.arange(0, N)
    values = tl.load(x + place)
    tl.store(as_stored + place, stored(values, DTYPE))
    tl.store(as_operand + place, operand(values, DTYPE).to(tl.float32))


@triton.jit
def square_kernel(x, y, N: tl.constexpr):
    place = tl.arange(0, N)
    values = loaded(tl.load(x + place))
    tl.store(y + place, values.to(tl.float32) * values.to(tl.float32))


def any_floats():
    bits = np.random.default_rng(1).integers(0, 2**32, N, dtype=np.uint32)
    ties = np.arange(0x3F808000, 0x3F808000 + (256 << 16), 1 << 16, dtype=np.uint32)
    special = np.array([0, 1 << 31, 1, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0x7F800001, 0x7F7FFFFF], np.uint32)
    bits[: len(ties)], bits[-len(special) :] = ties, special
    return torch.from_numpy(bits.view(np.float32))


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, tl.bfloat16), (torch.float16, tl.float16)])
def test_rounding_is_that_of_torch(dtype, name):
    x = any_floats()
    as_stored, as_operand = torch.empty(N, dtype=dtype), torch.empty(N)
    round_kernel[(1,)](x, as_stored, as_operand, DTYPE=name, N=N)
    expected = x.to(dtype)
    number = ~x.isnan()
    assert torch.equal(as_stored[number].view(torch.int16), expected[number].view(torch.int16))
    assert torch.equal(as_operand[number], expected[number].float())
    assert as_stored[~number].isnan().all()
    assert as_operand[~number].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_is_loaded_is_multiplied_as_the_number_it_stands_for(dtype):
    x = torch.randn(N).to(dtype)
    squares = torch.empty(N)
    square_kernel[(1,)](x, squares, N=N)
    assert torch.equal(squares, x.float() * x.float())


def test_these_tests_run_in_the_interpreter():
    assert INTERPRETED

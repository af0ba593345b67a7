"""Offsets of more than 2³¹ elements: tensors that large, of whose memory kernels touch a few pages.

The interpreter checks every 32-bit sum and product here, so an offset that wraps around fails before it is used.
"""

import mmap
from dataclasses import replace

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from glm_kernels.attention import launch
from glm_kernels.attention.launch import Dropping
from glm_kernels.dropout import RowKeys, dropout_add
from glm_kernels.dropout.triton_kernels import dropout_add_kernel
from glm_kernels.embedding import embedding
from glm_kernels.embedding.triton_kernels import (
    carried_gradient_kernel,
    embedding_kernel,
    sorted_gradient_kernel,
    table_gradient_kernel,
)
from glm_kernels.loss.triton_kernels import gradient_kernel, statistics_kernel
from glm_kernels.strides import with_near_rows
from tests.kernels.attention.cases import KEY, from_rows, inputs, tile
from tests.kernels.attention.test_interval_kernels import intervals_of

ROWS, FAR = 5, 2**29 + 16  # elements from row to row: the last begins beyond 2**31
BLOCKS = {"BLOCK_T": 16, "BLOCK_H": 16}
_ONLY_WHAT_IS_TOUCHED = 0x4000  # MAP_NORESERVE of Linux, which Python does not name before 3.13
OFF = (0, 0, 1.0)  # philox_key, threshold, scale of no dropout


@pytest.fixture(autouse=True)
def every_sum_is_checked(monkeypatch):
    checking = replace(interpreter.interpreter_builder.options, debug=True, sanitize_overflow=True)
    monkeypatch.setattr(interpreter.interpreter_builder, "options", checking)
    # It copies every tensor onto itself after a launch, holes and all.
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)


def far_apart(x: torch.Tensor, stride: int, dimension: int = 0) -> torch.Tensor:
    """A copy of a tensor with this many elements from one step of a dimension to the next."""
    strides = list(x.stride())
    strides[dimension] = stride
    size = stride * (x.shape[dimension] - 1) + x.numel()
    memory = mmap.mmap(-1, size * x.element_size(), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _ONLY_WHAT_IS_TOUCHED)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=x.dtype).as_strided(x.shape, strides).copy_(x)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


def test_a_sum_that_wraps_around_would_be_seen():
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(x, stride, BLOCK: tl.constexpr):
        tl.load(x + tl.arange(0, BLOCK) * stride, mask=tl.arange(0, BLOCK) < 1)

    kernel[(1,)](torch.zeros(1), FAR, BLOCK=4)
    with pytest.raises(Exception, match="overflow"):
        kernel[(1,)](torch.zeros(1), FAR, BLOCK=8)


class Spreading:
    """A kernel that is launched with the rows of its own results far apart."""

    def __init__(self, kernel, names, stride):
        self.kernel, self.names, self.stride = kernel, names, stride

    def __getitem__(self, grid):
        def run(*args, **constants):
            args, places = list(args), [self.kernel.arg_names.index(name) for name in self.names]
            near = [args[place] for place in places]
            for place, x in zip(places, near, strict=True):
                args[place] = far_apart(x, self.stride)
            args[self.kernel.arg_names.index("output_stride")] = self.stride
            self.kernel[grid](*args, **constants)
            for place, x in zip(places, near, strict=True):
                x.copy_(args[place])

        return run


def test_attention_far_down_a_row_of_tokens(monkeypatch):
    T, stride = 48, 2**26 + 16  # the last tile of rows begins beyond 2**31
    monkeypatch.setattr("glm_kernels.strides._LARGEST_STRIDE", 2**27)  # tiles have 16 rows here
    monkeypatch.setattr(launch, "DELTA_ROWS", 16)
    index = np.arange(T)
    visibility = from_rows(np.where(index < 10, 0, 10), np.where(index < 10, 0, index + 1))
    row_keys = RowKeys.from_lengths([3], [T], T)
    dropping = Dropping(0.3, row_keys.token_key, row_keys.token, KEY, first_head=0)
    tensors, size = inputs(T, 1, 16, torch.bfloat16), tile(16, 16)

    def run(query, key, value, upstream):
        output, log_sum_exp = launch.launch_forward(query, key, value, intervals_of(visibility), dropping, tile=size)
        saved = (query, key, value, output, log_sum_exp, None, intervals_of(visibility), dropping)
        return output, log_sum_exp, *launch.launch_backward(upstream, *saved, tiles=(size, size))

    expected = run(*tensors)
    assert expected[0].any()
    for name, results in (
        ("forward_kernel", ["output"]),
        ("delta_kernel", ["output"]),
        ("key_value_kernel", ["grad_key", "grad_value"]),
        ("query_kernel", ["grad_query"]),
    ):
        monkeypatch.setattr(launch, name, Spreading(getattr(launch, name), results, stride))
    got = run(*(far_apart(x.contiguous(), stride) for x in tensors))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("dimension", [0, 1], ids=["tokens", "heads"])
def test_attention_of_tokens_or_heads_far_apart(dimension):
    visibility = from_rows(np.zeros(5, int), np.arange(5) + 1)
    tensors = [x.contiguous() for x in inputs(5, 5, 16, torch.bfloat16)]

    def run(query, key, value, upstream):
        output, log_sum_exp = launch.launch_forward(query, key, value, intervals_of(visibility), None)
        saved = (query, key, value, output, log_sum_exp, None, intervals_of(visibility), None)
        return output, *launch.launch_backward(upstream, *saved)

    got = run(*(far_apart(x, FAR, dimension) for x in tensors))
    assert all(torch.equal(a, b) for a, b in zip(got, run(*tensors), strict=True))


def test_rows_too_far_apart_for_a_tile_are_copied():
    x = normal(3, 2, 8)
    assert with_near_rows(near := far_apart(x, 2**21 - 1)) is near
    assert with_near_rows(far_apart(x, 2**21)).stride() == (16, 8, 1)


def test_dropout_and_embedding_read_rows_far_apart():
    row_keys, ids = RowKeys.from_lengths([3], [ROWS], ROWS), torch.tensor([4, 0, 4, 3, 2])

    def results(x, residual):
        dropped = dropout_add(x, residual, probability=0.3, row_keys=row_keys, key=KEY, backend="triton")
        upstream = x[:1].expand(ROWS, -1)
        leaves = [table.detach().requires_grad_() for table in (x, residual, residual)]
        summed = embedding(ids, ids, ids, *leaves, deterministic=True, backend="triton")
        return dropped, summed, *torch.autograd.grad(summed, leaves, upstream)

    near = normal(ROWS, 16), normal(ROWS, 16)
    far = [far_apart(x, FAR) for x in near]
    assert all(torch.equal(a, b) for a, b in zip(results(*far), results(*near), strict=True))


def test_dropout_and_embedding_write_rows_far_apart():
    x, keys = normal(ROWS, 16), torch.arange(ROWS)
    out = far_apart(torch.zeros(ROWS, 16), FAR)
    dropout_add_kernel[(1, 1)](x, None, out, keys, None, 16, 0, ROWS, ROWS, FAR, *OFF, **BLOCKS)
    assert torch.equal(out, x)
    out.zero_()
    tables = (None, keys, keys, keys, x, None, None, out, None)
    embedding_kernel[(1, 1)](*tables, 0, 16, 0, 0, ROWS, FAR, 0, ROWS, 0, 0, 0.0, *OFF, **BLOCKS)
    assert torch.equal(out, x)


def test_gradients_of_tables_are_written_far_apart():
    upstream, ids = normal(40, 16), torch.tensor([4] * 20 + [0] + [3] * 3 + [2] * 16)
    expected = torch.zeros(ROWS, 16).index_add_(0, ids, upstream)
    sums, gradient = (far_apart(torch.zeros(ROWS, 16), FAR) for _ in range(2))
    table_gradient_kernel[(3, 1)](upstream, ids, sums, None, 16, 40, FAR, 0, ROWS, *OFF, **BLOCKS)
    torch.testing.assert_close(sums, expected)
    rows, order = ids.sort(stable=True)
    partial = far_apart(torch.zeros(6, 16), FAR)
    sorted_gradient_kernel[(3, 1)](upstream, order, rows, gradient, partial, None, 16, 40, FAR, ROWS, *OFF, **BLOCKS)
    carried_gradient_kernel[(3, 1)](rows, partial, gradient, 40, FAR, ROWS, BLOCK_S=16, **BLOCKS)
    torch.testing.assert_close(gradient, expected)


def test_the_loss_of_logits_far_apart():
    near, targets, upstream = normal(ROWS, 16), torch.tensor([3, 15, -1, 0, 7]), normal(ROWS)
    logits, found = far_apart(near, FAR), torch.zeros(3, ROWS)
    statistics_kernel[(ROWS,)](logits, targets, *found, FAR, 16, BLOCK_V=16)
    here = targets >= 0
    own = near.gather(1, targets.clamp(min=0)[:, None])[:, 0].where(here, 0.0)
    torch.testing.assert_close(found, torch.stack([near.logsumexp(1), own, near.sum(1)]))
    gradient_kernel[(ROWS, 1)](logits, targets, found[0], upstream, FAR, 16, 0.0, 1.0, BLOCK_V=16)
    wanted = torch.zeros(ROWS, 16).scatter_(1, targets.clamp(min=0)[:, None], here.float()[:, None])
    torch.testing.assert_close(logits, (near.softmax(1) - wanted) * upstream[:, None])

"""What the tiles of attention are measured by: samples of one segment, with the parts A and B of short spans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch

from glm_kernels.attention.launch import Dropping, Intervals, launch_backward, launch_forward
from glm_kernels.attention.tiles import TILES, entry_of
from glm_kernels.attention.visibility import Visibility
from glm_kernels.dropout.keys import DropoutKey, RowKeys, Site
from glm_kernels.tuning import Problem, Workload, combinations

_PART_A = 0.82  # of the tokens, in a row of short spans


def problems(workload: Workload) -> Iterator[Problem]:
    """The entries of the table. Both backward kernels run in a call that measures one of them."""
    blocks = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64, 128)}
    tiles = combinations(blocks, num_warps=(4, 8), num_stages=(1, 2, 3, 4))
    kinds = [(torch.bfloat16, dropout, long) for dropout in (False, True) for long in (False, True)]
    for kernel, head_dim in product(("forward", "key_value", "query"), (64, 96, 128)):
        for dtype, dropout, long in (*kinds, (torch.float32, False, False)):
            entry = entry_of(kernel, head_dim, dtype, dropout, long)
            work = _forward if kernel == "forward" else _backward
            yield Problem(entry, TILES, tiles, _maker(work, workload, head_dim, dtype, dropout, long))


def _maker(work, workload: Workload, head_dim: int, dtype: torch.dtype, dropout: bool, long: bool):
    def make(device: str) -> Callable[[], object]:
        length = workload.long_segment if long else workload.segment
        starts = range(0, workload.tokens - length + 1, length)
        part_a = int(_PART_A * length)
        segments = [(start, part_a, start + length) for start in starts]
        visibility = Visibility.from_segments(segments, workload.tokens).to(device)
        intervals = Intervals(visibility.key_start, visibility.key_end, visibility.query_start, visibility.query_end)
        dropping = None
        if dropout:
            keys = RowKeys.from_lengths(range(len(segments)), [length] * len(segments), workload.tokens).to(device)
            dropping = Dropping(0.1, keys.token_key, keys.token, DropoutKey(1, 0, Site.ATTENTION), 0)
        heads = max(1, workload.heads * 64 // head_dim)
        tensors = torch.randn(4, workload.tokens, heads, head_dim, device=device).to(dtype)
        return work(tensors, intervals, dropping, long)

    return make


def _forward(tensors: torch.Tensor, intervals: Intervals, dropping: Dropping | None, long: bool):
    return lambda: launch_forward(*tensors[:3], intervals, dropping, long_segments=long)


def _backward(tensors: torch.Tensor, intervals: Intervals, dropping: Dropping | None, long: bool):
    *inputs, upstream = tensors
    output, log_sum_exp = launch_forward(*inputs, intervals, dropping, long_segments=long)
    return lambda: launch_backward(
        upstream, *inputs, output, log_sum_exp, None, intervals, dropping, long_segments=long
    )

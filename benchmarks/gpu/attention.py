"""Attention forward and backward, side by side with what else computes the same, and with causal flash as the ceiling.

    python -m benchmarks.gpu.attention --output DIR [--dry-run]

Rows of one sample and rows full of samples; TFLOP/s are of the visible pairs: 4 · pairs · heads · d forward,
10 · pairs · heads · d backward. Each contestant has its masks and indices made before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.bench import Bench, Row, run_part, tried
from benchmarks.gpu.rows import SampleRow, sample_row
from glm_kernels.attention import attention
from glm_kernels.attention.varlen import Call, flash_calls
from glm_kernels.dropout import DropoutKey, Site

OURS, FLASH, FLEX, SDPA, CEILING = (
    "ours",
    "flash varlen, two calls",
    "FlexAttention, intervals",
    "SDPA, mask",
    "causal flash",
)
DROPOUTS = (0.0, 0.1)

Contestant = Callable[[Tensor, Tensor, Tensor], Tensor]


def measure(bench: Bench) -> Iterator[Row]:
    """Time attention at each length, single and packed, with and without dropout."""
    sizes = bench.sizes
    for length in sizes.lengths:
        for samples in (1, max(2, sizes.packed_tokens // length)):
            row = sample_row(length, samples, bench)
            for dropout in DROPOUTS:
                for one in contestants(bench, row, dropout):
                    yield measured(bench, row, dropout, *one)


def measured(bench: Bench, row: SampleRow, dropout: float, name: str, function: Contestant) -> Row:
    """One contestant on one row; `error` instead of times where it cannot."""
    sizes = bench.sizes
    shape = (row.tokens, sizes.heads, sizes.head_dim)
    inputs = [bench.randn(*shape, grad=True) for _ in range(3)]
    upstream = bench.randn(*shape)
    if name == CEILING:
        inputs = [row.by_sample(x.detach()).requires_grad_() for x in inputs]
        upstream = row.by_sample(upstream)
    pairs = row.causal_pairs() if name == CEILING else row.visible_pairs()
    flops = 4 * pairs * sizes.heads * sizes.head_dim

    def times() -> Row:
        forward, backward = bench.forward_and_backward(function, inputs, upstream)
        return {
            "forward_ms": forward,
            "backward_ms": backward,
            "forward_tflops": flops / forward / 1e9,
            "backward_tflops": 2.5 * flops / backward / 1e9,
        }

    place = {"length": row.length, "samples": row.samples, "dropout": dropout, "pairs": pairs}
    return tried({"contestant": name, **place}, times)


def contestants(bench: Bench, row: SampleRow, dropout: float) -> Iterator[tuple[str, Contestant]]:
    """Who computes this row with this dropout; masks of the dropout are their own."""
    key = DropoutKey(seed=1, layer=0, site=Site.ATTENTION)
    keyed = {"dropout": dropout, "row_keys": row.row_keys, "dropout_key": key}
    yield OURS, lambda q, k, v: attention(q, k, v, row.visibility, backend="triton", **keyed)
    yield SDPA, _masked(row.visibility.dense(), dropout)
    if bench.is_rehearsal:
        return  # the others have no kernels for a CPU
    yield FLASH, _two_flash_calls(flash_calls(row.visibility.segments, bench.device), dropout)
    if not dropout:
        yield FLEX, lambda q, k, v: attention(q, k, v, row.visibility, backend="flex")
    yield CEILING, _causal(dropout)


def _masked(visible: Tensor, dropout: float) -> Contestant:
    def masked(*inputs: Tensor) -> Tensor:
        query, key, value = (x.transpose(0, 1)[None] for x in inputs)
        output = scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout)
        return output[0].transpose(0, 1)

    return masked


def _two_flash_calls(calls: tuple[Call, ...], dropout: float) -> Contestant:
    """FlashAttention inside torch, through the operator under varlen_attn: that one has no dropout."""
    flash = partial(_flash, dropout=dropout)

    def two_calls(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = torch.zeros_like(query)
        for call in calls:
            rows = flash(query[call.query_rows], key[call.key_rows], value[call.key_rows], call)
            output = output.index_copy(0, call.query_rows, rows)
        return output

    return two_calls


def _flash(query: Tensor, key: Tensor, value: Tensor, call: Call, *, dropout: float) -> Tensor:
    return torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        call.query_ends,
        call.key_ends,
        call.longest_query,
        call.longest_key,
        dropout,
        call.causal,
        False,
    )[0]


def _causal(dropout: float) -> Contestant:
    def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)

    return causal


if __name__ == "__main__":
    raise SystemExit(run_part("attention", measure))

"""The tiles of the attention kernels, and how a head is cut into parts that tensor cores take.

Tiles of 64 x 64 waste the least of a row of short samples: `schedule.py` counts, docs/performance.md has the figures.
Rows of long segments get wider ones, which reuse more of what they load.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glm_kernels.tiles import Table, Tile, architecture, find_tile

LARGEST_HEAD = 128
DELTA_ROWS = 64  # a program of the delta kernel
_SMALLEST_PRODUCT = 16  # features that tl.dot takes at least


def head_parts(head_dim: int) -> tuple[int, int]:
    """How the kernels multiply a head, as two powers of two that sum to head_dim or a little more: 96 is 64 + 32.

    The second is 0 where one power of two is as good.
    """
    first = max(_SMALLEST_PRODUCT, 1 << head_dim.bit_length() - 1)
    rest = head_dim - first
    if rest <= 0:
        return first, 0
    second = max(_SMALLEST_PRODUCT, 1 << (rest - 1).bit_length())
    return (first, second) if second < first else (2 * first, 0)


def tile_for(kernel: str, query: Tensor, *, dropout: bool, long_segments: bool) -> Tile:
    """The tile of a kernel ("forward", "key_value", "query") for tensors like query [T, heads, d]."""
    entry = entry_of(kernel, query.shape[-1], query.dtype, dropout, long_segments)
    return find_tile(TILES, entry, architecture(query.device))


def entry_of(kernel: str, head_dim: int, dtype: torch.dtype, dropout: bool, long_segments: bool) -> str:
    """The name of a table entry, such as attention_forward_d64_dropout."""
    width = next(width for width in (64, 96, 128) if sum(head_parts(head_dim)) <= width)
    kind = ("_long" if long_segments else "") + ("_dropout" if dropout else "")
    if dtype == torch.float32:
        kind = "_fp32"  # without tensor cores, whose fp32 has 10 bits
    return f"attention_{kernel}_d{width}{kind}"


def _entries(
    kernel: str,
    width: int,
    *,
    short: tuple[int, ...],
    long: tuple[int, ...],
    short_dropout: tuple[int, ...] | None = None,
    long_dropout: tuple[int, ...] | None = None,
    fp32: tuple[int, ...] = (32, 32, 8, 2),
) -> dict[str, Tile]:
    """The entries of a kernel at a width of the heads: BLOCK_M, BLOCK_N, num_warps, num_stages each."""
    kinds = {
        "": short,
        "_dropout": short_dropout or short,
        "_long": long,
        "_long_dropout": long_dropout or long,
        "_fp32": fp32,
    }
    return {
        f"attention_{kernel}_d{width}{kind}": Tile({"BLOCK_M": m, "BLOCK_N": n}, num_warps, num_stages)
        for kind, (m, n, num_warps, num_stages) in kinds.items()
    }


# Sizes whose registers fit, by what the assembler says of them (docs/kernel_resources.md); not timed on a GPU yet.
TILES: Table = {
    "sm_80": {
        **_entries("forward", 64, short=(64, 64, 4, 3), long=(128, 64, 4, 3), long_dropout=(128, 64, 8, 3)),
        **_entries(
            "key_value",
            64,
            short=(64, 64, 4, 3),
            short_dropout=(32, 64, 4, 2),
            long=(64, 128, 8, 3),
            long_dropout=(32, 128, 8, 3),
        ),
        **_entries("query", 64, short=(64, 64, 4, 3), long=(128, 64, 8, 3)),
        **_entries("forward", 96, short=(64, 64, 4, 2), long=(128, 64, 8, 2)),
        **_entries("key_value", 96, short=(32, 64, 4, 2), long=(32, 128, 8, 2)),
        **_entries("query", 96, short=(64, 32, 4, 2), long=(128, 32, 8, 2)),
        **_entries("forward", 128, short=(64, 64, 4, 2), long=(128, 32, 8, 3), long_dropout=(128, 64, 8, 2)),
        **_entries("key_value", 128, short=(64, 64, 8, 2), long=(32, 128, 8, 2), long_dropout=(64, 64, 8, 2)),
        **_entries("query", 128, short=(64, 64, 8, 2), long=(128, 32, 8, 2)),
    },
    "sm_90": {
        **_entries("forward", 64, short=(64, 64, 4, 3), long=(128, 64, 8, 3)),
        **_entries("key_value", 64, short=(64, 64, 4, 3), long=(64, 128, 8, 3)),
        **_entries("query", 64, short=(64, 64, 4, 3), long=(128, 64, 8, 3)),
        **_entries("forward", 96, short=(64, 64, 4, 2), long=(128, 64, 8, 2)),
        **_entries("key_value", 96, short=(64, 64, 8, 2), long=(32, 128, 8, 2)),
        **_entries("query", 96, short=(64, 64, 4, 2), long=(128, 32, 8, 2)),
        **_entries("forward", 128, short=(64, 64, 4, 2), long=(128, 64, 8, 2), fp32=(32, 16, 8, 2)),
        **_entries("key_value", 128, short=(64, 64, 8, 2), long=(32, 128, 8, 2), fp32=(16, 32, 8, 2)),
        **_entries("query", 128, short=(64, 64, 4, 2), long=(128, 32, 8, 2)),
    },
}

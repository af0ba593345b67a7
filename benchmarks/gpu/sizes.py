"""The two sizes of the GPU benchmarks: what is measured on a GPU, and what a CPU rehearses it with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """How large everything is.

    Attributes:
        lengths: tokens of a sample in the rows of attention.
        packed_tokens: of a row that is filled with samples of one length.
        tokens: of the row of the smaller kernels; targets: of them, those of the loss.
        positions: rows of the position tables.
        steps, stack_layers: training steps that are timed, and layers of the 2B stack.
        milliseconds: of the repetitions of what is timed; 0: once.
    """

    lengths: tuple[int, ...]
    packed_tokens: int
    heads: int
    head_dim: int
    tokens: int
    targets: int
    hidden: int
    vocabulary: int
    positions: int
    steps: int
    stack_layers: int
    milliseconds: int


# 16 heads of 64 are GLM-Large's, 30,592 ids its vocabulary; 16k tokens are a micro-batch of 28 of its samples.
FULL = Sizes(
    lengths=(512, 1024, 2048, 4096),
    packed_tokens=16_384,
    heads=16,
    head_dim=64,
    tokens=16_384,
    targets=3_072,
    hidden=1024,
    vocabulary=30_592,
    positions=513,
    steps=6,
    stack_layers=12,
    milliseconds=60,
)
TOY = Sizes(
    lengths=(48,),
    packed_tokens=96,
    heads=1,
    head_dim=64,
    tokens=96,
    targets=20,
    hidden=64,
    vocabulary=256,
    positions=65,
    steps=1,
    stack_layers=1,
    milliseconds=0,
)

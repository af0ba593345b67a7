"""Samples as one flat row of tokens: no batch dimension, no padding between samples.

Samples of blank infilling differ in length, and a rectangle of them is a quarter padding. Here they stand
one after another, and every token carries what its neighbours do not tell: its positions, the
interval of keys it sees, and the key of its dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from glm_kernels.attention.visibility import Visibility
from glm_kernels.dropout.keys import RowKeys
from megatron_glm.objective.sample import Objective, Sample


@dataclass(frozen=True)
class Batch:
    """A micro-batch: a row of T tokens, N of which are targets.

    Attributes:
        input_ids, position_ids, block_position_ids: int64 [T].
        visibility: which keys each token sees; padding sees none and is seen by none.
        row_keys: the sample and place of each token.
        target_index: int64 [N], places of the targets in the row.
        target_ids, target_objective: int64 [N].
        target_counts: targets of each objective; they sum to N.
        num_tokens: tokens without padding.
        num_samples: samples taken from the order, those with nothing to mask included.
        yielded: tokens that the ratios of masking asked for and the limits on spans refused.
    """

    input_ids: Tensor
    position_ids: Tensor
    block_position_ids: Tensor
    visibility: Visibility
    row_keys: RowKeys
    target_index: Tensor
    target_ids: Tensor
    target_objective: Tensor
    target_counts: tuple[int, int, int]
    num_tokens: int
    num_samples: int
    yielded: int

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device."""
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            position_ids=self.position_ids.to(device),
            block_position_ids=self.block_position_ids.to(device),
            visibility=self.visibility.to(device),
            row_keys=self.row_keys.to(device),
            target_index=self.target_index.to(device),
            target_ids=self.target_ids.to(device),
            target_objective=self.target_objective.to(device),
        )


def collate(samples: Sequence[Sample], *, multiple: int = 64, capacity: int | None = None, pad_id: int) -> Batch:
    """Put samples into one row, in the given order; there may be none, and empty ones.

    Args:
        multiple: the row is padded to a multiple of this many tokens, and has at least as many.
        capacity: the row's length in tokens instead, where all rows must be alike (pipelines).
        pad_id: the token of the padding.

    Raises:
        ValueError: more tokens than `capacity`.
    """
    lengths = np.array([len(sample.input_ids) for sample in samples], np.int64)
    ends = np.cumsum(lengths)
    num_tokens = int(lengths.sum())
    T = max(1, -(-num_tokens // multiple)) * multiple if capacity is None else capacity
    if num_tokens > T:
        raise ValueError(f"{len(samples)} samples have {num_tokens} tokens, the row's capacity is {T}")

    def row(name: str, padding: int) -> np.ndarray:
        values = np.full(T, padding, np.int64)
        np.concatenate([values[:0], *(getattr(s, name) for s in samples)], out=values[:num_tokens])
        return values

    is_target = row("loss_mask", 0).astype(bool)
    target_index = np.flatnonzero(is_target)
    objective = np.repeat([sample.objective for sample in samples], lengths).astype(np.int64)
    target_objective = objective[target_index]
    counts = np.bincount(target_objective, minlength=len(Objective))
    starts = (ends - lengths).tolist()
    segments = [
        (start + begin, part_a, start + end)
        for sample, start in zip(samples, starts, strict=True)
        for begin, part_a, end in sample.segments.tolist()
    ]
    return Batch(
        input_ids=torch.from_numpy(row("input_ids", pad_id)),
        position_ids=torch.from_numpy(row("position_ids", 0)),
        block_position_ids=torch.from_numpy(row("block_position_ids", 0)),
        visibility=Visibility.from_segments(tuple(segments), T),
        row_keys=RowKeys.from_lengths([sample.index for sample in samples], lengths.tolist(), T),
        target_index=torch.from_numpy(target_index),
        target_ids=torch.from_numpy(row("targets", pad_id)[target_index]),
        target_objective=torch.from_numpy(target_objective),
        target_counts=tuple(counts.tolist()),
        num_tokens=num_tokens,
        num_samples=len(samples),
        yielded=sum(sample.yielded for sample in samples),
    )

"""Samples as one flat row of tokens: no batch dimension, no padding between samples.

Samples of blank infilling differ in length, and a rectangle of them is a quarter padding. Here they stand
one after another, and every token carries what its neighbours do not tell: its positions, the
interval of keys it sees, and the key of its dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch
from torch import Tensor

from glm_kernels.attention.visibility import Visibility
from glm_kernels.dropout.keys import RowKeys
from megatron_glm.data.flat_row import FlatRow, flat_row
from megatron_glm.objective.sample import Sample

_Group = TypeVar("_Group", Visibility, RowKeys)


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

    @classmethod
    def of(cls, row: FlatRow) -> Self:
        """The row's arrays as tensors; they share its memory."""
        num_tokens, num_samples, yielded = row.totals.tolist()
        bounds = (row.key_start, row.key_end, row.query_start, row.query_end)
        return cls(
            input_ids=torch.from_numpy(row.input_ids),
            position_ids=torch.from_numpy(row.position_ids),
            block_position_ids=torch.from_numpy(row.block_position_ids),
            visibility=Visibility(*map(torch.from_numpy, bounds), segments=tuple(map(tuple, row.segments.tolist()))),
            row_keys=RowKeys(
                *map(torch.from_numpy, (row.sample, row.token, row.token_key)),
                spans=tuple(map(tuple, row.spans.tolist())),
            ),
            target_index=torch.from_numpy(row.target_index),
            target_ids=torch.from_numpy(row.target_ids),
            target_objective=torch.from_numpy(row.target_objective),
            target_counts=tuple(row.target_counts.tolist()),
            num_tokens=num_tokens,
            num_samples=num_samples,
            yielded=yielded,
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device; the host does not wait for tensors that lie in pinned memory."""
        return self._each(lambda part: part.to(device, non_blocking=True), lambda part: part.to(device))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory, from which a GPU copies while the host goes on."""
        return self._each(Tensor.pin_memory, lambda part: part.pin_memory())

    def _each(self, move: Callable[[Tensor], Tensor], move_group: Callable[[_Group], _Group]) -> Batch:
        return replace(
            self,
            input_ids=move(self.input_ids),
            position_ids=move(self.position_ids),
            block_position_ids=move(self.block_position_ids),
            visibility=move_group(self.visibility),
            row_keys=move_group(self.row_keys),
            target_index=move(self.target_index),
            target_ids=move(self.target_ids),
            target_objective=move(self.target_objective),
        )


def collate(samples: Sequence[Sample], *, multiple: int = 64, capacity: int | None = None, pad_id: int) -> Batch:
    """Put samples into one row: `flat_row` as tensors."""
    return Batch.of(flat_row(samples, multiple=multiple, capacity=capacity, pad_id=pad_id))

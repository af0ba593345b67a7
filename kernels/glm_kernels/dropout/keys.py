"""What decides a dropout mask: the run, the layer, the site and the sample, never the row it stands in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor


class Site(IntEnum):
    """Where in a layer something is dropped. The numbers are part of the key: they never change."""

    EMBEDDING = 1
    ATTENTION = 2
    ATTENTION_OUTPUT = 3
    MLP_OUTPUT = 4


@dataclass(frozen=True)
class RowKeys:
    """Which sample, and which token of it, each token of a row is."""

    sample: Tensor  # int64 [T] global sample index; -1 in padding
    token: Tensor  # int32 [T] place in the sample; 0 in padding
    spans: tuple[tuple[int, int, int], ...]  # on the host: (global sample index, start, end) in the row

    @classmethod
    def from_lengths(cls, samples: Sequence[int], lengths: Sequence[int], row_length: int) -> RowKeys:
        """The keys of samples (global indices) of these lengths (tokens) that stand one after another."""
        ends = np.cumsum([0, *lengths]).tolist()
        spans = tuple((int(sample), ends[i], ends[i + 1]) for i, sample in enumerate(samples) if ends[i + 1] > ends[i])
        sample_of = np.full(row_length, -1, dtype=np.int64)
        token_of = np.zeros(row_length, dtype=np.int32)
        for sample, start, end in spans:
            sample_of[start:end] = sample
            token_of[start:end] = np.arange(end - start)
        return cls(torch.from_numpy(sample_of), torch.from_numpy(token_of), spans)

    def to(self, device: torch.device | str) -> RowKeys:
        """The same on another device."""
        return RowKeys(self.sample.to(device, non_blocking=True), self.token.to(device, non_blocking=True), self.spans)

    def pin_memory(self) -> RowKeys:
        """The same in page-locked memory."""
        return RowKeys(self.sample.pin_memory(), self.token.pin_memory(), self.spans)


@dataclass(frozen=True)
class DropoutKey:
    """What a site of the model adds to the key: the run's seed, the layer (from 0), the site."""

    seed: int
    layer: int
    site: int

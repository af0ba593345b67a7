"""What decides a dropout mask: the run, the layer, the site and the sample, never the row it stands in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from glm_kernels.hashing import hashed, token_keys


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
    token_key: Tensor  # int64 [T] hash of the two: the counter of the kernels' Philox
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
        per_token = (sample_of, token_of, token_keys(sample_of, token_of))
        return cls(*(torch.from_numpy(values) for values in per_token), spans)

    def to(self, device: torch.device | str) -> RowKeys:
        """The same on another device."""
        per_token = (self.sample, self.token, self.token_key)
        return RowKeys(*(values.to(device, non_blocking=True) for values in per_token), self.spans)

    def pin_memory(self) -> RowKeys:
        """The same in page-locked memory."""
        return RowKeys(self.sample.pin_memory(), self.token.pin_memory(), self.token_key.pin_memory(), self.spans)


@dataclass(frozen=True)
class DropoutKey:
    """What a site of the model adds to the key: the run's seed, the layer (from 0), the site."""

    seed: int
    layer: int
    site: int

    def philox_key(self) -> int:
        """A 64-bit hash of the three, as a signed integer: the key of the kernels' Philox."""
        return hashed(self.seed, self.layer, self.site)


def drop_threshold(probability: float) -> int:
    """A random 32-bit word below this drops; given as a signed 32-bit integer, for the kernels' arguments.

    A probability of 1 leaves one word of 2**32 that does not: what it keeps is scaled by `keep_scale`, 0.
    """
    threshold = min(round(probability * 2**32), 2**32 - 1)
    return threshold - (threshold >> 31 << 32)

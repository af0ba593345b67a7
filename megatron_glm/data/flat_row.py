"""Samples as one flat row of arrays: what a batch holds, without torch.

Worker processes make these, and what is left to the training process is to wrap them as tensors: batch.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glm_kernels.hashing import token_keys
from megatron_glm.objective.sample import Objective, Sample


@dataclass(frozen=True)
class FlatRow:
    """A row of T tokens, N of which are targets, of S segments in K samples that are not empty.

    Attributes:
        input_ids, position_ids, block_position_ids: int64 [T].
        key_start, key_end, query_start, query_end: int32 [T], who sees whom: `Visibility`.
        sample, token, token_key: int64, int32 and int64 [T], the keys of dropout: `RowKeys`.
        target_index, target_ids, target_objective: int64 [N].
        segments: int64 [S, 3]: start, length of part A, end.
        spans: int64 [K, 3]: global sample index, start, end.
        target_counts: int64 [objectives], targets of each objective.
        totals: int64 [3]: tokens without padding, samples with those that are empty, tokens yielded.
    """

    input_ids: np.ndarray
    position_ids: np.ndarray
    block_position_ids: np.ndarray
    key_start: np.ndarray
    key_end: np.ndarray
    query_start: np.ndarray
    query_end: np.ndarray
    sample: np.ndarray
    token: np.ndarray
    token_key: np.ndarray
    target_index: np.ndarray
    target_ids: np.ndarray
    target_objective: np.ndarray
    segments: np.ndarray
    spans: np.ndarray
    target_counts: np.ndarray
    totals: np.ndarray


def flat_row(samples: Sequence[Sample], *, multiple: int = 64, capacity: int | None = None, pad_id: int) -> FlatRow:
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

    target_index = np.flatnonzero(row("loss_mask", 0))
    objective = np.repeat(np.array([sample.objective for sample in samples], np.int64), lengths)
    target_objective = objective[target_index]
    segments = _segments(samples, ends - lengths)
    spans = np.stack([np.array([sample.index for sample in samples], np.int64), ends - lengths, ends], axis=1)
    spans = spans[lengths > 0]
    key_start, key_end, query_start, query_end = intervals(segments, T)
    sample, token = _keys(spans, T)
    return FlatRow(
        input_ids=row("input_ids", pad_id),
        position_ids=row("position_ids", 0),
        block_position_ids=row("block_position_ids", 0),
        key_start=key_start,
        key_end=key_end,
        query_start=query_start,
        query_end=query_end,
        sample=sample,
        token=token,
        token_key=token_keys(sample, token),
        target_index=target_index,
        target_ids=row("targets", pad_id)[target_index],
        target_objective=target_objective,
        segments=segments,
        spans=spans,
        target_counts=np.bincount(target_objective, minlength=len(Objective)),
        totals=np.array([num_tokens, len(samples), sum(sample.yielded for sample in samples)], np.int64),
    )


def intervals(segments: np.ndarray, length: int) -> tuple[np.ndarray, ...]:
    """The four bounds of `Visibility` for segments that tile a row's start: int64 [S, 3] -> int32 [length] each.

    `Visibility.from_segments` is the plain reference.
    """
    index = np.arange(length, dtype=np.int32)
    key_start, key_end, query_start, query_end = (index.copy() for _ in range(4))
    start, part_a, end = segments.astype(np.int32).T
    n = int(end[-1]) if len(end) else 0
    boundary = np.repeat(start + part_a, end - start)
    key_start[:n] = np.repeat(start, end - start)
    key_end[:n] = np.maximum(boundary, index[:n] + 1)
    query_start[:n] = np.where(index[:n] < boundary, key_start[:n], index[:n])
    query_end[:n] = np.repeat(end, end - start)
    return key_start, key_end, query_start, query_end


def _segments(samples: Sequence[Sample], starts: np.ndarray) -> np.ndarray:
    """The samples' segments moved to where each sample starts: int64 [S, 3]."""
    parts = [np.empty((0, 3), np.int64), *(sample.segments for sample in samples)]
    segments = np.concatenate(parts, dtype=np.int64)
    segments[:, [0, 2]] += np.repeat(starts, [len(part) for part in parts[1:]])[:, None]
    return segments


def _keys(spans: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The sample and the place of each token; `RowKeys.from_lengths` is the plain reference."""
    index, start, end = spans.T
    n = int(end[-1]) if len(end) else 0
    sample = np.full(length, -1, np.int64)
    token = np.zeros(length, np.int32)
    sample[:n] = np.repeat(index, end - start)
    token[:n] = np.arange(n) - np.repeat(start, end - start)
    return sample, token

"""Which samples a replica takes in a step: known without torch, so that worker processes start at once."""

from __future__ import annotations

import numpy as np

from megatron_glm.config.batching import BatchSizes
from megatron_glm.data.skip_list import SkipList

_NONE = SkipList()


def step_indices(
    step_first_sample: int,
    global_batch_size: int,
    dp_rank: int,
    dp_size: int,
    micro_batch_size: int,
    skips: SkipList = _NONE,
) -> np.ndarray:
    """The global sample indices of a replica in a step: int64 [accumulation, micro_batch_size].

    The replicas together have the next global_batch_size samples from step_first_sample on, but for those left out,
    each once: the samples of a step depend neither on the number of replicas nor on the size of a micro-batch.

    Raises:
        ValueError: sizes that do not divide the global batch, or a rank outside range(dp_size).
    """
    if not 0 <= dp_rank < dp_size:
        raise ValueError(f"dp_rank {dp_rank} lies outside range({dp_size})")
    if global_batch_size % (dp_size * micro_batch_size):
        raise ValueError(
            f"global batch {global_batch_size} is not a multiple of {dp_size} replicas × micro-batch {micro_batch_size}"
        )
    indices = skips.take(step_first_sample, global_batch_size)
    return indices.reshape(-1, dp_size, micro_batch_size)[:, dp_rank]


def step_end(step_first_sample: int, sizes: BatchSizes, skips: SkipList) -> int:
    """The first sample of the step after the one that begins here: behind the last sample that it takes."""
    return int(skips.take(step_first_sample, sizes.at(step_first_sample))[-1]) + 1

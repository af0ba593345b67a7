"""Which samples a replica takes in a step: known without torch, so that worker processes start at once."""

from __future__ import annotations

import numpy as np


def step_indices(
    step_first_sample: int, global_batch_size: int, dp_rank: int, dp_size: int, micro_batch_size: int
) -> np.ndarray:
    """The global sample indices of a replica in a step: int64 [accumulation, micro_batch_size].

    The replicas together have step_first_sample … + global_batch_size − 1, each once: the samples of a step
    depend neither on the number of replicas nor on the size of a micro-batch.

    Raises:
        ValueError: sizes that do not divide the global batch, or a rank outside range(dp_size).
    """
    if not 0 <= dp_rank < dp_size:
        raise ValueError(f"dp_rank {dp_rank} lies outside range({dp_size})")
    if global_batch_size % (dp_size * micro_batch_size):
        raise ValueError(
            f"global batch {global_batch_size} is not a multiple of {dp_size} replicas × micro-batch {micro_batch_size}"
        )
    indices = step_first_sample + np.arange(global_batch_size, dtype=np.int64)
    return indices.reshape(-1, dp_size, micro_batch_size)[:, dp_rank]

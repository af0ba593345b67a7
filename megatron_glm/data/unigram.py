"""What a model without context could reach: the yardstick for a validation loss."""

from __future__ import annotations

import numpy as np

from megatron_glm.data.loader import HeldOut
from megatron_glm.objective.sample import Objective


def unigram_entropy(held_out: HeldOut, objective: Objective) -> float:
    """Entropy in nats of the distribution of the held-out windows' own target tokens.

    It is the least mean loss of any prediction that ignores the context.
    """
    samples = (held_out.sample(objective, window) for window in range(held_out.num_windows))
    targets = [sample.targets[sample.loss_mask] for sample in samples]
    _, counts = np.unique(np.concatenate(targets), return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())

"""The module that DeepSpeed trains: GLM with the weighted loss of one micro-batch.

Model and head run inside one forward, since ZeRO-3 gathers the tied word table only there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megatron_glm.data.batch import Batch
from megatron_glm.model.glm import GLM
from megatron_glm.objective.sample import Objective


def weighted_loss(
    glm: GLM, hidden: Tensor, batch: Batch, weights: Tensor, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """Σ over the targets of weight(objective) · loss, fp32 [], and the summed nll by objective, fp64 [3].

    The latter has no gradient, and is without label smoothing; so is all of an evaluation.

    Args:
        hidden: [N, H], at the targets.
        weights: fp32 [3], of one target of each objective.
    """
    loss, nll = glm.smoothed_loss(hidden, batch.target_ids, label_smoothing if glm.training else 0.0)
    sums = torch.zeros(len(Objective), dtype=torch.float64, device=nll.device)
    sums.index_add_(0, batch.target_objective, nll.double())
    return (loss * weights[batch.target_objective]).sum(), sums


class WeightedLoss(nn.Module):
    """A GLM with its weighted loss of one micro-batch."""

    def __init__(self, glm: GLM, *, dropout_seed: int, label_smoothing: float = 0.0):
        super().__init__()
        self.glm = glm
        self._dropout_seed, self._label_smoothing = dropout_seed, label_smoothing

    def forward(self, batch: Batch, weights: Tensor, embedding_gradient: float = 1.0) -> tuple[Tensor, Tensor]:
        """The loss, fp32 [], and the summed nll of each objective, fp64 [3] without gradient.

        Args:
            weights: fp32 [3], the weight of one target of each objective.
            embedding_gradient: factor of what reaches the word table from the input.
        """
        hidden = self.glm(
            batch.input_ids,
            batch.position_ids,
            batch.block_position_ids,
            batch.visibility,
            batch.target_index,
            row_keys=batch.row_keys,
            dropout_seed=self._dropout_seed,
            embedding_gradient=embedding_gradient,
        )
        return weighted_loss(self.glm, hidden, batch, weights, self._label_smoothing)

"""The module that DeepSpeed trains: GLM with the weighted loss of one micro-batch.

Model and head run inside one forward, since ZeRO-3 gathers the tied word table only there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megatron_glm.data.batch import Batch
from megatron_glm.model.glm import GLM
from megatron_glm.objective.sample import Objective


class WeightedLoss(nn.Module):
    """Σ over the micro-batch's targets of weight(objective) · nll."""

    def __init__(self, glm: GLM, *, dropout_seed: int):
        super().__init__()
        self.glm = glm
        self.dropout_seed = dropout_seed

    def forward(self, batch: Batch, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, fp32 [], and the summed nll of each objective, fp32 [3] without gradient.

        Args:
            weights: fp32 [3], the weight of one target of each objective.
        """
        hidden = self.glm(
            batch.input_ids,
            batch.position_ids,
            batch.block_position_ids,
            batch.visibility,
            batch.target_index,
            row_keys=batch.row_keys,
            dropout_seed=self.dropout_seed,
        )
        nll = self.glm.token_loss(hidden, batch.target_ids)
        loss = (nll * weights[batch.target_objective]).sum()
        sums = torch.zeros(len(Objective), dtype=torch.float64, device=nll.device)
        sums.index_add_(0, batch.target_objective, nll.detach().double())
        return loss, sums

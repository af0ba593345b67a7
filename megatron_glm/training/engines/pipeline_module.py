"""A stage of the pipeline as DeepSpeed wants it: a module from hidden states to hidden states.

Every stage makes the micro-batches of a step itself, from the sample indices, so nothing crosses the stages but
one tensor, [C, H], or this rank's rows of it. A stage knows a micro-batch by its turn: forward passes run in
order on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor, nn

from megatron_glm.data.batch import Batch
from megatron_glm.model.glm import GLM
from megatron_glm.objective.sample import Objective
from megatron_glm.parallel.groups import Groups
from megatron_glm.training.engines.loss_module import weighted_loss


class StageLoss(nn.Module):
    """This stage's layers; the last one's output is the weighted loss, as loss_module.py has it.

    Attributes:
        sums: on the last stage, the summed nll of each objective since `expect`, fp64 [3].
    """

    def __init__(self, glm: GLM, *, dropout_seed: int, label_smoothing: float = 0.0):
        super().__init__()
        self.glm = glm
        self._dropout_seed, self._label_smoothing = dropout_seed, label_smoothing

    def expect(self, batches: Iterable[Batch], weights: Tensor, embedding_gradient: float = 1.0) -> None:
        """Say which micro-batches the next forward passes are of, in order.

        Args:
            weights: fp32 [3], of one target of each objective.
            embedding_gradient: factor of what reaches the word table from the input.
        """
        self._batches, self._weights, self._embedding_gradient = iter(batches), weights, embedding_gradient
        self.sums = torch.zeros(len(Objective), dtype=torch.float64, device=weights.device)

    def forward(self, hidden: Tensor) -> Tensor:
        """[c, H] -> [c, H] of the c tokens held; the first stage reads nothing, the last one returns fp32 []."""
        glm, batch = self.glm, next(self._batches)
        row = glm.row(batch.visibility, batch.row_keys, self._dropout_seed)
        if glm.is_first:
            hidden = glm.embed(
                batch.input_ids, batch.position_ids, batch.block_position_ids, row, self._embedding_gradient
            )
        hidden = glm.transformer(hidden, row, batch.target_index)
        if not glm.is_last:
            return hidden
        loss, sums = weighted_loss(glm, hidden, batch, self._weights, self._label_smoothing)
        self.sums += sums
        return loss


class StagePipeline(PipelineModule):
    """A pipeline of as many entries as stages, of which this rank has one.

    The division is ours (parallel/stages.py), and so is the tie of the word table: DeepSpeed's way would give the
    table a name of its own.
    """

    def __init__(self, stage: StageLoss, groups: Groups):
        layout, place = groups.layout, groups.place
        topology = PipeModelDataParallelTopology(num_pp=layout.pipeline, num_mp=layout.tensor, num_dp=layout.data)
        stages = [stage if number == place.pipeline else nn.Identity() for number in range(layout.pipeline)]
        super().__init__(stages, topology=topology, partition_method="uniform")
        self.prefix = f"{place.pipeline}.glm."
        self._ends = groups.ends
        self._words = stage.glm.word_embeddings
        if self._words is not None:
            # The first stage's copy counts in the gradient norm.
            self._words.weight.ds_pipe_replicated = not stage.glm.is_first

    def get_tied_weights_and_groups(self) -> list[tuple[_AccumulatedGradient, dist.ProcessGroup]]:
        """What DeepSpeed sums the gradients of, over which ranks, before it averages over replicas."""
        return [] if self._words is None else [(_AccumulatedGradient(self._words.weight), self._ends)]


class _AccumulatedGradient:
    """What DeepSpeed reads of a tied weight: its gradient, from wherever the optimizer accumulates it."""

    def __init__(self, weight: nn.Parameter):
        # BF16_Optimizer reads the first; the other ones fill grad_accum and leave grad empty, which DeepSpeed's
        # pipeline takes for nothing to sum.
        self._hp_grad = getattr(weight, "_hp_grad", None)
        accumulated = getattr(weight, "grad_accum", None)
        self.grad = weight.grad if accumulated is None else accumulated

"""The engine with a pipeline: a replica's layers are divided over stages, a stage's over tensor-parallel ranks."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe.schedule import InferenceSchedule, PipeSchedule
from torch import Tensor

from megatron_glm.config.schema import Config
from megatron_glm.data.batch import Batch
from megatron_glm.model.glm import GLM
from megatron_glm.model.sizes import parameter_shapes
from megatron_glm.objective.sample import Objective
from megatron_glm.parallel.groups import Groups
from megatron_glm.training.engines.canonical_state import CanonicalState, mark_shards
from megatron_glm.training.engines.clipping import clip_gradients
from megatron_glm.training.engines.deepspeed_json import deepspeed_json
from megatron_glm.training.engines.deepspeed_start import start_deepspeed
from megatron_glm.training.engines.dropped_update import dropped_update
from megatron_glm.training.engines.exact_loss import Counts, summing_weights
from megatron_glm.training.engines.loss_scale import LossScale
from megatron_glm.training.engines.optimizer import build_optimizer
from megatron_glm.training.engines.pipeline_module import StageLoss, StagePipeline
from megatron_glm.training.engines.pipeline_schedule import GradientSchedule
from megatron_glm.training.engines.stateful_engine import StatefulEngine

_EVALUATED_TOGETHER = 8  # micro-batches a stage, in a row: filling and draining the pipeline costs one a stage


class PipelineEngine(StatefulEngine):
    """DeepSpeed's pipeline around this rank's stage of a model, with ZeRO 0 or 1; the interface is ZeroEngine's.

    All ranks of a replica are given the same micro-batches, and those of one call are rows of equal length.

    Args:
        model: this rank's shard of its stage, freshly initialised, on the CPU in fp32.
        accumulation: micro-batches of one replica in a step, at most.

    Attributes:
        shapes: of the whole parameters of the whole model, by name.
        loss_scale: of fp16.
    """

    def __init__(self, config: Config, model: GLM, *, groups: Groups, accumulation: int):
        self.shapes = parameter_shapes(model.config, model.num_ids)
        self.num_parameters = sum(math.prod(shape) for shape in self.shapes.values())
        self.device = torch.device(get_accelerator().current_device_name())
        self._groups = groups
        self._clipping = config.optimizer.gradient_clipping
        self._accumulation = accumulation
        mark_shards(model, groups)
        self._stage = StageLoss(model, dropout_seed=config.train.seed, label_smoothing=config.train.label_smoothing)
        with contextlib.redirect_stdout(None):  # DeepSpeed prints its topology
            module = StagePipeline(self._stage, groups)
        self._engine = start_deepspeed(
            config,
            model=module,
            optimizer=build_optimizer(module, config.optimizer, zero_stage=config.parallel.zero_stage),
            config=deepspeed_json(config, accumulation=accumulation, num_parameters=self.num_parameters),
        )
        # A stage takes its micro-batches itself; what DeepSpeed loads for the first and the last is thrown away.
        nothing = torch.empty(0, device=self.device)
        self._engine.set_dataiterator(itertools.repeat((nothing, nothing)))
        self._engine._compute_loss = False  # the last stage's output is the loss
        self._row_length = 0
        self._state = CanonicalState(self._engine, prefix=module.prefix, shapes=self.shapes, groups=groups)
        self.loss_scale = LossScale(self._engine)

    def accumulate(
        self, batches: Sequence[Batch], weights: Sequence[float], *, embedding_gradient: float = 1.0
    ) -> Tensor:
        """Forward and backward of this replica's micro-batches, any number: their summed nll by objective, fp64 [3].

        Args:
            weights: of one target token of each objective (objective_weights of the global counts).
            embedding_gradient: factor of what reaches the word table from the input.
        """
        self._engine.train()
        weight = summing_weights(weights, self._groups.layout.data * self._accumulation, self.device)
        return self._over_stages(self._run(GradientSchedule, batches, weight, embedding_gradient))

    def update(self, learning_rate: float) -> float | None:
        """One AdamW update with the accumulated gradients: their global norm before clipping.

        None: an fp16 gradient overflowed on some rank, and all of them skip the update. They skip it too where the
        norm is not finite.
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        if self._engine.zero_optimization_stage() == 0:
            tensor = self._groups.tensor if self._groups.layout.tensor > 1 else None
            norm = clip_gradients(
                self._engine.module.parameters(), self._clipping, tensor, pipeline=self._groups.pipeline
            )
            with contextlib.nullcontext() if math.isfinite(norm) else dropped_update(self._engine):
                self._engine._exec_optimizer_step()
        else:
            self._engine._exec_optimizer_step()
            norm = None if self.loss_scale.overflowed else float(self._engine.get_global_grad_norm())
        self._share_word_table()
        return norm

    def drop(self) -> None:
        """Make no update of the accumulated gradients; all ranks alike."""
        with dropped_update(self._engine):
            self._engine._exec_optimizer_step()

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> tuple[Tensor, Counts]:
        """The summed nll by objective of this replica's batches, without dropout, fp64 [3], and their counts."""
        self._engine.eval()
        weight = torch.zeros(len(Objective), dtype=torch.float32, device=self.device)
        sums = torch.zeros(len(Objective), dtype=torch.float64, device=self.device)
        counts = Counts()
        rest, together = iter(batches), _EVALUATED_TOGETHER * self._groups.layout.pipeline
        while some := list(itertools.islice(rest, together)):
            sums += self._run(InferenceSchedule, some, weight)
            counts += Counts.of(some)
        return self._over_stages(sums), counts

    def _run(
        self,
        schedule: type[PipeSchedule],
        batches: Sequence[Batch],
        weights: Tensor,
        embedding_gradient: float = 1.0,
    ) -> Tensor:
        """Pass the micro-batches through the stages: their summed nll by objective, on the last stage."""
        self._expect_length(batches)
        self._stage.expect((batch.to(self.device) for batch in batches), weights, embedding_gradient)
        layout, place = self._groups.layout, self._groups.place
        # Its train_batch makes the update too and averages the loss over micro-batches.
        self._engine._exec_schedule(schedule(len(batches), layout.pipeline, place.pipeline))
        return self._stage.sums

    def _expect_length(self, batches: Sequence[Batch]) -> None:
        """Let the stages tell each other the size of a hidden state anew where it is another than before."""
        lengths = {len(batch.input_ids) for batch in batches}
        if len(lengths) != 1:
            raise ValueError(f"micro-batches of a pipeline must be rows of one length, got lengths {sorted(lengths)}")
        (length,) = lengths
        if length != self._row_length:
            self._engine.reset_activation_shape()
            self._row_length = length

    @torch.no_grad()
    def _share_word_table(self) -> None:
        """Give the last stage the first one's.

        Their gradients are averaged over the replicas apart, in buckets that differ, so that the terms are added in
        another order and the last bits differ: the tables would drift apart.
        """
        if self._groups.ends is not None:
            dist.broadcast(self._stage.glm.word_embeddings.weight, group_src=0, group=self._groups.ends)

    def _over_stages(self, sums: Tensor) -> Tensor:
        """What the last stage knows, on all."""
        dist.broadcast(sums, group_src=self._groups.layout.pipeline - 1, group=self._groups.pipeline)
        return sums

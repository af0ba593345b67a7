"""The engine without a pipeline: every replica has all layers, which tensor-parallel ranks share; ZeRO 0 to 3."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext

import torch
from deepspeed.accelerator import get_accelerator
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
from megatron_glm.training.engines.dropped_update import dropped_update, forget_gradients
from megatron_glm.training.engines.exact_loss import Counts, summing_weights
from megatron_glm.training.engines.loss_module import WeightedLoss
from megatron_glm.training.engines.loss_scale import LossScale
from megatron_glm.training.engines.model_parallel_unit import ModelParallelUnit
from megatron_glm.training.engines.optimizer import build_optimizer
from megatron_glm.training.engines.stateful_engine import StatefulEngine

_PREFIX = "glm."  # WeightedLoss holds the model under this name; checkpoints use the original names


class ZeroEngine(StatefulEngine):
    """DeepSpeed around a model, or around this rank's shard of it.

    Args:
        model: freshly initialised, on the CPU in fp32.
        accumulation: micro-batches of one replica in a step, at most.

    Attributes:
        shapes: of the whole parameters, by name.
        loss_scale: of fp16.
    """

    def __init__(self, config: Config, model: GLM, *, groups: Groups, accumulation: int):
        self.shapes = parameter_shapes(model.config, model.num_ids)
        self._groups = groups
        self.num_parameters = sum(math.prod(shape) for shape in self.shapes.values())
        self.device = torch.device(get_accelerator().current_device_name())
        module = WeightedLoss(model, dropout_seed=config.train.seed, label_smoothing=config.train.label_smoothing)
        self._clipping = config.optimizer.gradient_clipping
        self._accumulation = accumulation
        mark_shards(model, groups)
        module.to(self.device)
        tree = deepspeed_json(config, accumulation=accumulation, num_parameters=self.num_parameters)
        optimizer = build_optimizer(module, config.optimizer, zero_stage=config.parallel.zero_stage)
        self._engine = start_deepspeed(
            config, model=module, optimizer=optimizer, config=tree, mpu=ModelParallelUnit(groups)
        )
        self._state = CanonicalState(self._engine, prefix=_PREFIX, shapes=self.shapes, groups=groups)
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
        sums = torch.zeros(len(Objective), dtype=torch.float64, device=self.device)
        for number, batch in enumerate(batches, start=1):
            # Its own count of micro-batches knows one number for all steps.
            self._engine.set_gradient_accumulation_boundary(number == len(batches))
            loss, batch_sums = self._engine(batch.to(self.device), weight, embedding_gradient)
            self._engine.backward(loss)
            sums += batch_sums
            if number < len(batches):
                self._engine.step()  # only counts the micro-batch
        return sums

    def update(self, learning_rate: float) -> float | None:
        """One AdamW update with the accumulated gradients: their global norm before clipping.

        None: an fp16 gradient overflowed on some rank, and all of them skip the update. They skip it too where the
        norm is not finite.
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        if self._engine.zero_optimization_stage() == 0:
            group = self._groups.tensor if self._groups.layout.tensor > 1 else None
            norm = clip_gradients(self._engine.module.parameters(), self._clipping, group)
            with nullcontext() if math.isfinite(norm) else dropped_update(self._engine):
                self._engine.step()
            return norm
        self._engine.step()
        forget_gradients(self._engine)
        return None if self.loss_scale.overflowed else float(self._engine.get_global_grad_norm())

    def drop(self) -> None:
        """Make no update of the accumulated gradients; all ranks alike."""
        with dropped_update(self._engine):
            self._engine.step()

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> tuple[Tensor, Counts]:
        """The summed nll by objective of this replica's batches, without dropout, fp64 [3], and their counts."""
        self._engine.eval()
        weight = torch.zeros(len(Objective), dtype=torch.float32, device=self.device)
        sums = torch.zeros(len(Objective), dtype=torch.float64, device=self.device)
        counts = Counts()
        for batch in batches:
            sums += self._engine(batch.to(self.device), weight)[1]
            counts += Counts.of([batch])
        return sums, counts

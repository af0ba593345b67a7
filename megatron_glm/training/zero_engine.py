"""The engine without a pipeline: one replica a process, ZeRO 0 to 3 over the replicas."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_grad
from torch import Tensor

from megatron_glm.checkpoint.format import KINDS, Fragment
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.config.schema import Config
from megatron_glm.data.batch import Batch
from megatron_glm.errors import CheckpointError, ConfigError
from megatron_glm.model.glm import GLM
from megatron_glm.objective.sample import Objective
from megatron_glm.training.clipping import clip_gradients
from megatron_glm.training.deepspeed_json import deepspeed_json
from megatron_glm.training.engine_state import create_moments, local_parts, publish_weights, set_update_count
from megatron_glm.training.exact_loss import Counts
from megatron_glm.training.loss_module import WeightedLoss
from megatron_glm.training.optimizer import build_optimizer

_PREFIX = "glm."  # WeightedLoss holds the model under this name; checkpoints use the original names


class ZeroEngine:
    """DeepSpeed around a whole model in every process.

    Args:
        model: freshly initialised, on the CPU in fp32.
        replicas: data-parallel size.
        accumulation: micro-batches of one replica in a step.
    """

    def __init__(self, config: Config, model: GLM, *, replicas: int, accumulation: int):
        self.shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self.num_parameters = sum(math.prod(shape) for shape in self.shapes.values())
        self.device = torch.device(get_accelerator().current_device_name())
        module = WeightedLoss(model, dropout_seed=config.train.seed)
        self._clipping = config.optimizer.gradient_clipping
        self._replicas, self._accumulation = replicas, accumulation
        module.to(self.device)
        tree = deepspeed_json(config, accumulation=accumulation, num_parameters=self.num_parameters)
        optimizer = build_optimizer(module, config.optimizer)
        with contextlib.redirect_stdout(None), _expert_section_at_fault(config):  # DeepSpeed prints its memory use
            self._engine, *_ = deepspeed.initialize(
                model=module, optimizer=optimizer, config=tree, dist_init_required=False
            )
        create_moments(self._engine)

    def accumulate(self, batches: Sequence[Batch], weights: Sequence[float]) -> Tensor:
        """Forward and backward of this replica's micro-batches: their summed nll by objective, fp64 [3].

        Args:
            weights: of one target token of each objective (objective_weights of the global counts).
        """
        self._engine.train()
        # DeepSpeed divides by the accumulation and averages over replicas; the exact loss is a plain sum.
        scale = float(self._replicas * self._accumulation)
        weight = torch.tensor(weights, dtype=torch.float32, device=self.device) * scale
        sums = torch.zeros(len(Objective), dtype=torch.float64, device=self.device)
        for number, batch in enumerate(batches, start=1):
            loss, batch_sums = self._engine(batch.to(self.device), weight)
            self._engine.backward(loss)
            sums += batch_sums
            if number < len(batches):
                self._engine.step()  # only counts the micro-batch
        return sums

    def update(self, learning_rate: float) -> float:
        """One AdamW update with the accumulated gradients: their global norm before clipping."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        if self._engine.zero_optimization_stage() == 0:
            norm = clip_gradients(self._engine.module.parameters(), self._clipping)
            self._engine.step()
            return norm
        self._engine.step()
        return float(self._engine.get_global_grad_norm())

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

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Between accumulate and update: the whole fp32 gradient of each parameter. All ranks must iterate."""
        for name, parameter in self._engine.module.named_parameters():
            yield name.removeprefix(_PREFIX), safe_get_full_grad(parameter).float()

    def fragments(self, *, rank: int) -> Iterator[Fragment]:
        """The fp32 weights and moments that this rank saves; over all ranks each element once."""
        if self._engine.zero_optimization_stage() == 0 and rank != 0:
            return
        for part in local_parts(self._engine):
            name = part.name.removeprefix(_PREFIX)
            for kind in KINDS:
                yield Fragment(name=name, kind=kind, start=part.start, values=getattr(part, kind).detach())

    @torch.no_grad()
    def load(self, checkpoint: CheckpointReader, *, step: int) -> None:
        """Take weights and moments of a checkpoint saved under any layout.

        Args:
            step: updates made so far, for Adam's bias correction.

        Raises:
            CheckpointError: the checkpoint's parameters are not this model's.
        """
        check_same_shapes(checkpoint.shapes, self.shapes)
        set_update_count(self._engine, step)
        for part in local_parts(self._engine):
            name, stop = part.name.removeprefix(_PREFIX), part.start + part.weight.numel()
            for kind in KINDS:
                getattr(part, kind).copy_(checkpoint.read(name, kind, part.start, stop))
        publish_weights(self._engine, lambda name: checkpoint.read(name.removeprefix(_PREFIX), "weight"))


@contextlib.contextmanager
def _expert_section_at_fault(config: Config) -> Iterator[None]:
    """What DeepSpeed raises while it reads its configuration, told as an error of our section for it."""
    try:
        yield
    except (AttributeError, AssertionError, TypeError, ValueError) as error:  # pydantic's is a ValueError
        if not config.deepspeed:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"deepspeed: DeepSpeed refuses this section ({reason}); mend or remove it") from error


def check_same_shapes(saved: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Raises CheckpointError naming the first parameter that differs."""
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            raise CheckpointError(
                f"parameter {name}: the checkpoint has {_shape(saved.get(name))}, the model {_shape(wanted.get(name))};"
                " the model section of the configuration must be the one the checkpoint was trained with"
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else f"shape {list(shape)}"

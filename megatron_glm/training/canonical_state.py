"""The parameters of an engine under their canonical names: gradients, what is saved, what is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.utils import safe_get_full_grad
from torch import Tensor, nn

from megatron_glm.checkpoint.format import KINDS, Fragment, Kind
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.errors import CheckpointError
from megatron_glm.model.sizes import WORD_TABLE
from megatron_glm.parallel.cuts import Shard
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.rectangles import Rectangle
from megatron_glm.training.engine_state import (
    LocalPart,
    create_moments,
    local_parts,
    publish_weights,
    set_update_count,
)
from megatron_glm.training.replica_check import Copy


class CanonicalState:
    """This rank's part of the weights and moments, seen as parts of the whole parameters.

    Args:
        engine: before its first update; its moments are created.
        prefix: what stands before the canonical name of each parameter in the engine's module.
        shapes: of the whole parameters, by canonical name.
    """

    def __init__(self, engine: DeepSpeedEngine, *, prefix: str, shapes: Mapping[str, tuple[int, ...]], groups: Groups):
        self._engine, self._prefix, self._shapes, self._groups = engine, prefix, shapes, groups
        create_moments(engine)

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """The fp32 gradient of each parameter, or of this rank's shard of it. All ranks must iterate."""
        scale = self._engine.optimizer.loss_scale if self._engine.fp16_enabled() else 1.0
        for name, parameter in self._engine.module.named_parameters():
            yield self._canonical(name), safe_get_full_grad(parameter).float() / scale

    def fragments(self) -> Iterator[Fragment]:
        """The fp32 weights and moments that this rank saves; over all ranks each element once."""
        place = self._groups.place
        if self._engine.zero_optimization_stage() == 0 and place.data != 0:
            return
        for part in local_parts(self._engine):
            name = self._canonical(part.name)
            if place.tensor != 0 and not self._shard(name).cut:
                continue  # the first rank of the group has it too
            if place.pipeline != 0 and name == WORD_TABLE:
                continue  # the first stage has it too
            for kind in KINDS:
                values = getattr(part, kind).detach()
                for piece in self._places(part):
                    stored = values[piece.offset : piece.offset + piece.size]
                    yield Fragment(name, kind, piece.start, stored, piece.rows, piece.stride)

    def copies(self) -> Iterator[Copy]:
        """All weights and moments that this rank holds; parts of ZeRO-3 that come and go are left out."""
        for full_name, parameter in self._engine.module.named_parameters():
            name = self._canonical(full_name)
            if parameter.numel():
                yield Copy(name, f"weight{self._held(name)}", True, parameter)
        for local in local_parts(self._engine):
            name = self._canonical(local.name)
            for kind in KINDS:
                values = getattr(local, kind)
                elements = f"elements {local.start} to {local.start + values.numel() - 1}"
                yield Copy(name, f"fp32 {kind}{self._held(name)}, {elements}", False, values)

    @torch.no_grad()
    def load(self, checkpoint: CheckpointReader, *, step: int) -> None:
        """Take weights and moments of a checkpoint saved under any layout.

        Args:
            step: updates made so far, for Adam's bias correction.

        Raises:
            CheckpointError: the checkpoint's parameters are not this model's.
        """
        check_same_shapes(checkpoint.shapes, self._shapes)
        set_update_count(self._engine, step)
        for part in local_parts(self._engine):
            name = self._canonical(part.name)
            for kind in KINDS:
                getattr(part, kind).copy_(_read(checkpoint, name, kind, self._places(part)))

        def own_weight(name: str) -> Tensor:
            name = self._canonical(name)
            whole, shard = self._shapes[name], self._shard(name)
            return _read(checkpoint, name, "weight", shard.rectangles(whole, 0, math.prod(shard.shape(whole))))

        publish_weights(self._engine, own_weight)

    def _canonical(self, name: str) -> str:
        return name.removeprefix(self._prefix)

    def _shard(self, name: str) -> Shard:
        return Shard.of(name, rank=self._groups.place.tensor, size=self._groups.layout.tensor)

    def _held(self, name: str) -> str:
        shard = self._shard(name)
        return f", shard {shard.rank} of {shard.size}" if shard.cut else ""

    def _places(self, part: LocalPart) -> Iterator[Rectangle]:
        """Where a flat range of this rank's shard lies in the whole parameter."""
        name = self._canonical(part.name)
        return self._shard(name).rectangles(self._shapes[name], part.start, part.start + part.weight.numel())


def mark_shards(model: nn.Module, groups: Groups) -> None:
    """Tell DeepSpeed which parameters are shards: in the gradient norm it counts the others once."""
    for name, parameter in model.named_parameters():
        parameter.model_parallel = Shard.of(name, rank=0, size=groups.layout.tensor).cut is not None


def _read(checkpoint: CheckpointReader, name: str, kind: Kind, places: Iterable[Rectangle]) -> Tensor:
    return torch.cat([checkpoint.read_rectangle(name, kind, place) for place in places])


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

"""The parameters of an engine under their canonical names: gradients, what is saved, what is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.utils import safe_get_full_grad
from torch import Tensor, nn

from megatron_glm.checkpoint.format import KINDS, Fragment, Kind
from megatron_glm.checkpoint.source import ValueSource
from megatron_glm.errors import CheckpointError
from megatron_glm.model.sizes import WORD_TABLE
from megatron_glm.parallel.cuts import Shard
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.rectangles import Rectangle
from megatron_glm.training.engines.engine_state import (
    LocalPart,
    create_moments,
    local_parts,
    publish_weights,
    set_update_count,
    working_parts,
)
from megatron_glm.training.engines.replica_check import Copy


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
        for part in self._own_parts():
            for kind in KINDS:
                yield from self._fragments_of(part.name, kind, part.start, getattr(part, kind).detach())

    def working_fragments(self) -> Iterator[Fragment]:
        """The weights that the forward pass reads, as fp32; over all ranks each element once."""
        for part in working_parts(self._engine):
            if part.is_partition or self._groups.place.data == 0:
                yield from self._fragments_of(part.name, "weight", part.start, part.values.float())

    def rounded_fragments(self) -> Iterator[Fragment]:
        """What these must be: the fp32 weights, rounded to the precision of the forward pass."""
        precision = {name: parameter.dtype for name, parameter in self._engine.module.named_parameters()}
        for part in self._own_parts():
            rounded = part.weight.detach().to(precision[part.name]).float()
            yield from self._fragments_of(part.name, "weight", part.start, rounded)

    def _own_parts(self) -> Iterator[LocalPart]:
        """The parts of this rank that no other replica has too."""
        is_copy = self._engine.zero_optimization_stage() == 0 and self._groups.place.data != 0
        return iter(()) if is_copy else local_parts(self._engine)

    def _fragments_of(self, full_name: str, kind: Kind, start: int, values: Tensor) -> Iterator[Fragment]:
        """A flat range of this rank's shard, as it lies in the whole parameter; nothing where another rank saves it."""
        name, place = self._canonical(full_name), self._groups.place
        if place.tensor != 0 and not self._shard(name).cut:
            return  # the first rank of the group has it
        if place.pipeline != 0 and name == WORD_TABLE:
            return  # the first stage has it
        for piece in self._places(name, start, values.numel()):
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
    def load(self, source: ValueSource, *, step: int) -> None:
        """Take weights and moments of a checkpoint saved under any layout, or of another source.

        Args:
            step: updates made so far, for Adam's bias correction.

        Raises:
            CheckpointError: the source's parameters are not this model's.
        """
        check_same_shapes(source.shapes, self._shapes)
        set_update_count(self._engine, step)
        for part in local_parts(self._engine):
            name = self._canonical(part.name)
            for kind in KINDS:
                places = self._places(name, part.start, part.weight.numel())
                getattr(part, kind).copy_(_read(source, name, kind, places))

        def own_weight(name: str) -> Tensor:
            name = self._canonical(name)
            whole, shard = self._shapes[name], self._shard(name)
            return _read(source, name, "weight", shard.rectangles(whole, 0, math.prod(shard.shape(whole))))

        publish_weights(self._engine, own_weight)

    def _canonical(self, name: str) -> str:
        return name.removeprefix(self._prefix)

    def _shard(self, name: str) -> Shard:
        return Shard.of(name, rank=self._groups.place.tensor, size=self._groups.layout.tensor)

    def _held(self, name: str) -> str:
        shard = self._shard(name)
        return f", shard {shard.rank} of {shard.size}" if shard.cut else ""

    def _places(self, name: str, start: int, length: int) -> Iterator[Rectangle]:
        """Where a flat range of this rank's shard lies in the whole parameter."""
        return self._shard(name).rectangles(self._shapes[name], start, start + length)


def mark_shards(model: nn.Module, groups: Groups) -> None:
    """Tell DeepSpeed which parameters are shards: in the gradient norm it counts the others once."""
    for name, parameter in model.named_parameters():
        parameter.model_parallel = Shard.of(name, rank=0, size=groups.layout.tensor).cut is not None


def _read(source: ValueSource, name: str, kind: Kind, places: Iterable[Rectangle]) -> Tensor:
    return torch.cat([source.read_rectangle(name, kind, place) for place in places])


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

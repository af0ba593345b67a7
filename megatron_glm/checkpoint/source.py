"""What an engine can be filled from: a checkpoint, or weights alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from megatron_glm.checkpoint.fingerprint import fingerprints
from megatron_glm.checkpoint.format import KINDS, Fragment, Kind
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.parallel.rectangles import Rectangle


class ValueSource(Protocol):
    """Weights and moments by place; `CheckpointReader` is one.

    Attributes:
        path: where they come from.
        shapes: of all parameters by name.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]]

    def read_rectangle(self, name: str, kind: Kind, wanted: Rectangle) -> Tensor:
        """Some columns of some rows of a parameter: fp32 [rows · width], one row after another."""

    def fingerprints(self) -> dict[str, int]:
        """Of each `name/kind`."""


class WeightsOnly:
    """Weights without moments, which are those of an optimizer that has made no update: zero.

    Args:
        read: name and place -> fp32 [rows · width].
        weight_fingerprints: of each `name/weight`.
    """

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, tuple[int, ...]],
        read: Callable[[str, Rectangle], Tensor],
        weight_fingerprints: Callable[[], Mapping[str, int]],
    ):
        self.path, self.shapes, self._read, self._weight_fingerprints = path, shapes, read, weight_fingerprints

    @classmethod
    def of_checkpoint(cls, checkpoint: CheckpointReader) -> WeightsOnly:
        def read(name: str, wanted: Rectangle) -> Tensor:
            return checkpoint.read_rectangle(name, "weight", wanted)

        return cls(checkpoint.path, checkpoint.shapes, read, checkpoint.fingerprints)

    @classmethod
    def of_tensors(cls, path: Path, weights: Mapping[str, Tensor]) -> WeightsOnly:
        """Of whole weights in any precision."""
        shapes = {name: tuple(weight.shape) for name, weight in weights.items()}

        def weight_fingerprints() -> dict[str, int]:
            whole = ((name, weight.flatten().float()) for name, weight in weights.items())
            return fingerprints(Fragment(name, "weight", 0, values) for name, values in whole)

        return cls(path, shapes, partial(_rectangle_of, weights), weight_fingerprints)

    def read_rectangle(self, name: str, kind: Kind, wanted: Rectangle) -> Tensor:
        """Some columns of some rows of a parameter: fp32 [rows · width], one row after another."""
        return self._read(name, wanted) if kind == "weight" else torch.zeros(wanted.size)

    def fingerprints(self) -> dict[str, int]:
        """Of each `name/kind`, those of zeros for the moments."""
        zeros = (
            Fragment(name, kind, 0, torch.zeros(prod(shape)))
            for name, shape in self.shapes.items()
            for kind in KINDS
            if kind != "weight"
        )
        return {**self._weight_fingerprints(), **fingerprints(zeros)}


def _rectangle_of(weights: Mapping[str, Tensor], name: str, wanted: Rectangle) -> Tensor:
    flat = weights[name].contiguous().flatten()
    part = flat.as_strided((wanted.rows, wanted.width), (wanted.stride, 1), wanted.start)
    return part.to(torch.float32).flatten()

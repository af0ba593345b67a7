"""The weights of a release: safetensors files of bounded size under the names of the original release."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from megatron_glm.config.schema import Model
from megatron_glm.errors import CheckpointError
from megatron_glm.json_reading import json_object, string
from megatron_glm.model.sizes import parameter_shapes

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_READABLE = 0o644
_TYPES = ("F32", "BF16", "F16")


class Weights(Protocol):
    """A checkpoint, as far as its weights go: `CheckpointReader` is one."""

    shapes: Mapping[str, tuple[int, ...]]

    def read(self, name: str, kind: str) -> Tensor: ...


def read_weight(source: Weights, name: str, dtype: torch.dtype) -> Tensor:
    """A whole parameter in its shape, rounded to dtype.

    Raises:
        CheckpointError: values that dtype cannot hold: fp16 ends at 65504.
    """
    exact = source.read(name, "weight").view(source.shapes[name])
    weight = exact.to(dtype)
    if not weight.isfinite().all():
        raise CheckpointError(
            f"{name}: values up to {exact.abs().max():g} do not fit into {dtype}; export as fp32 or bf16"
        )
    return weight


def write_weights(directory: Path, source: Weights, dtype: torch.dtype, max_shard_bytes: int) -> None:
    """Write all weights, one file in memory at a time; several files come with an index."""
    shards = _shards(source.shapes, dtype.itemsize, max_shard_bytes)
    if len(shards) == 1:
        names = [WEIGHTS]
    else:
        names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
        _write_index(directory, source.shapes, dict(zip(names, shards, strict=True)), dtype)
    for name, shard in zip(names, shards, strict=True):
        tensors = {parameter: read_weight(source, parameter, dtype) for parameter in shard}
        # transformers wants to be told that the tensors are torch's.
        save_file(tensors, directory / name, metadata={"format": "pt"})
        (directory / name).chmod(_READABLE)  # safetensors writes for the owner alone, and a release is to be shared


def stored_shapes(paths: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter in files of weights, from their headers.

    Raises:
        CheckpointError: a file cannot be read, a parameter is there twice or of another type.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in paths:
        with _opened(path) as stored:
            for name in stored.keys():  # noqa: SIM118 - not a mapping
                weight = stored.get_slice(name)
                if name in shapes or weight.get_dtype() not in _TYPES:
                    raise CheckpointError(f"{path}: holds '{name}' twice, or as {weight.get_dtype()}")
                shapes[name] = tuple(weight.get_shape())
    return shapes


def stored_weights(paths: Iterable[Path]) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of a release with its name, file by file.

    Raises:
        CheckpointError: a file cannot be read.
    """
    for path in paths:
        with _opened(path) as stored:
            for name in stored.keys():  # noqa: SIM118 - not a mapping
                yield name, stored.get_tensor(name)


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    try:
        with safe_open(path, framework="pt") as stored:
            yield stored
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def weight_files(directory: Path, names: Container[str]) -> list[Path]:
    """The files of the weights, by the index where there is one.

    Args:
        names: files of the release; no other is read.

    Raises:
        CheckpointError: the index is none, or asks for another file.
    """
    index = directory / INDEX
    if not index.exists():
        wanted = {WEIGHTS}
    else:
        try:
            wanted = set(map(string, json_object(index.read_bytes())["weight_map"].values()))
        except (AttributeError, LookupError, OSError, ValueError) as error:
            raise CheckpointError(f"{index}: not an index of weights ({error}); copy the release again") from error
    if foreign := sorted(name for name in wanted if name not in names):
        raise CheckpointError(f"{directory}: {foreign[0]!r} is no file that its manifest lists; copy the release again")
    return [directory / name for name in sorted(wanted)]


def check_shapes(stored: Mapping[str, tuple[int, ...]], config: Model, num_ids: int, where: Path) -> None:
    """See that weights are those of a model before memory for it is asked for.

    Raises:
        CheckpointError: names the first parameter that is not.
    """
    layers = config.num_layers
    if layers > len(stored):  # before the names of a billion layers are made
        raise CheckpointError(f"{where}: has {len(stored)} parameters, its configuration asks for {layers} layers")
    wanted = parameter_shapes(config, num_ids)
    for name in sorted(wanted.keys() | stored.keys()):
        if wanted.get(name) != stored.get(name):
            raise CheckpointError(
                f"{where}: {name} has shape {stored.get(name)}, its configuration asks for {wanted.get(name)}"
            )


def _shards(shapes: Mapping[str, tuple[int, ...]], itemsize: int, max_bytes: int) -> list[list[str]]:
    """Names in order, a new shard where the next parameter would exceed max_bytes."""
    shards: list[list[str]] = []
    room = 0
    for name, shape in shapes.items():
        size = itemsize * torch.Size(shape).numel()
        if not shards or size > room:
            shards.append([])
            room = max_bytes
        shards[-1].append(name)
        room -= size
    return shards


def _write_index(
    directory: Path, shapes: Mapping[str, tuple[int, ...]], shards: Mapping[str, list[str]], dtype: torch.dtype
) -> None:
    total = dtype.itemsize * sum(torch.Size(shape).numel() for shape in shapes.values())
    weight_map = {parameter: name for name, shard in shards.items() for parameter in shard}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")

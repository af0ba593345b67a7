"""Reading and writing the checkpoint format of the original GLM code.

One `mp_rank_XX_model_states.pt` per tensor-parallel rank, each a dictionary whose `module` holds
that rank's weights. The files are pickles by nature: they are only ever opened with torch's
restricted unpickler, which builds tensors and plain containers and runs nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from megatron_glm.errors import CheckpointError
from megatron_glm.files import Files, atomic_directory

# How a weight is spread over tensor-parallel ranks: cut along an axis, cut along the first axis
# within each of Q, K and V (rank r holds [Q_r; K_r; V_r]), or the same on every rank.
_Split = Literal["rows", "columns", "thirds", "replicated"]

_OUTER: dict[str, _Split] = {
    "word_embeddings.weight": "rows",
    "transformer.position_embeddings.weight": "replicated",
    "transformer.block_position_embeddings.weight": "replicated",
    "transformer.final_layernorm.weight": "replicated",
    "transformer.final_layernorm.bias": "replicated",
}
_LAYER: dict[str, _Split] = {
    "input_layernorm.weight": "replicated",
    "input_layernorm.bias": "replicated",
    "attention.query_key_value.weight": "thirds",
    "attention.query_key_value.bias": "thirds",
    "attention.dense.weight": "columns",
    "attention.dense.bias": "replicated",
    "post_attention_layernorm.weight": "replicated",
    "post_attention_layernorm.bias": "replicated",
    "mlp.dense_h_to_4h.weight": "rows",
    "mlp.dense_h_to_4h.bias": "rows",
    "mlp.dense_4h_to_h.weight": "columns",
    "mlp.dense_4h_to_h.bias": "replicated",
}
_LAYER_NAME = re.compile(r"transformer\.layers\.(\d+)\.")
_RANK_FILE = re.compile(r"mp_rank_(\d+)_model_states\.pt")

# The original stores NumPy's generator beside the weights; an array of numbers is all these can build.
_RECONSTRUCT_ARRAY = np.empty(0).__reduce__()[0]
_NUMPY_TYPES = [
    (_RECONSTRUCT_ARRAY, "numpy._core.multiarray._reconstruct"),
    (_RECONSTRUCT_ARRAY, "numpy.core.multiarray._reconstruct"),  # its name before NumPy 2
    np.ndarray,
    np.dtype,
    np.dtypes.UInt32DType,
]


def is_original(path: Path) -> bool:
    """Whether a path is a file, as only the original's checkpoints are, or a directory of the original's files."""
    return path.is_file() or (path.is_dir() and any(_RANK_FILE.fullmatch(entry.name) for entry in path.iterdir()))


def read_original(path: Path) -> dict[str, Tensor]:
    """The whole weights of an original checkpoint, as stored (fp16 or fp32), by name.

    Args:
        path: one `.pt` file, or the directory that holds `mp_rank_00_model_states.pt`, ….

    Raises:
        CheckpointError: no such file, not this format, a rank's file is missing, or unknown or
            missing names.
    """
    paths = _rank_files(path) if path.is_dir() else [path]
    shards = [_read_module(file, len(paths)) for file in paths]
    splits = _check_names(shards[0], paths[0])
    for file, shard in zip(paths[1:], shards[1:], strict=True):
        if shard.keys() != shards[0].keys():
            raise CheckpointError(f"{file}: has other parameters than {paths[0].name}")
    return {name: _merge(name, split, [shard[name] for shard in shards]) for name, split in splits.items()}


def write_original(
    directory: Path,
    weights: Mapping[str, Tensor],
    *,
    iteration: int,
    tensor_parallel: int = 1,
    files: Files | None = None,
) -> None:
    """Write `weights` (whole, under the original's names) as one file per tensor-parallel rank.

    Raises:
        CheckpointError: unknown or missing names, or a weight that cannot be cut so often.
        FileExistsError: `directory` is there and not empty.
    """
    files = files or Files()
    splits = _check_names(weights, directory)
    shards = {name: _cut(name, split, weights[name], tensor_parallel) for name, split in splits.items()}
    with atomic_directory(directory, files) as temporary:
        for rank in range(tensor_parallel):
            content = {
                # Clones: a view would take its whole storage into the file.
                "module": {name: parts[rank].clone() for name, parts in shards.items()},
                "iteration": iteration,
                "mp_world_size": tensor_parallel,
            }
            with files.open(temporary / f"mp_rank_{rank:02d}_model_states.pt") as stream:
                torch.save(content, stream)
                files.sync(stream)


def _rank_files(directory: Path) -> list[Path]:
    found = {int(match[1]): path for path in directory.iterdir() if (match := _RANK_FILE.fullmatch(path.name))}
    if not found:
        raise CheckpointError(f"{directory}: no original checkpoint (expected mp_rank_00_model_states.pt, …)")
    for rank in range(max(found)):
        if rank not in found:
            raise CheckpointError(f"{directory}: mp_rank_{rank:02d}_model_states.pt is missing")
    return [found[rank] for rank in sorted(found)]


def _read_module(path: Path, world_size: int) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    try:
        with torch.serialization.safe_globals(_NUMPY_TYPES):
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # garbage makes the unpickler raise anything
        first = (str(error).splitlines() or [""])[0].strip() or type(error).__name__
        raise CheckpointError(f"{path}: not an original GLM checkpoint ({first})") from error
    module = content.get("module") if isinstance(content, dict) else None
    if not isinstance(module, dict) or not all(
        isinstance(name, str) and _is_plain(value) for name, value in module.items()
    ):
        raise CheckpointError(f"{path}: not an original GLM checkpoint (no 'module' of tensors)")
    declared = content.get("mp_world_size")
    declared = declared if type(declared) is int and declared else world_size
    if declared != world_size:
        raise CheckpointError(
            f"{path}: one of {declared} tensor-parallel files, {world_size} given; give the directory with all of them"
        )
    return dict(module)


def _is_plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.dtype.is_floating_point


def _check_names(weights: Mapping[str, Tensor], where: Path) -> dict[str, _Split]:
    """How each weight is split, if the names are exactly those of a GLM with as many layers as they show."""
    layers = {int(match[1]) for name in weights if (match := _LAYER_NAME.match(name))}
    splits = dict(_OUTER)
    # Of one more than there can be a layer is missing in any case; a number may have any size.
    for layer in range(min(max(layers, default=-1), len(weights)) + 1):
        splits |= {f"transformer.layers.{layer}.{name}": split for name, split in _LAYER.items()}
    if missing := sorted(splits.keys() - weights.keys()):
        raise CheckpointError(f"{where}: {len(missing)} parameters are missing, the first is '{missing[0]}'")
    if unknown := sorted(weights.keys() - splits.keys()):
        raise CheckpointError(f"{where}: {len(unknown)} parameters are not GLM's, the first is '{unknown[0]}'")
    return splits


def _merge(name: str, split: _Split, parts: list[Tensor]) -> Tensor:
    least = 2 if split == "columns" else 0 if split == "replicated" else 1
    if any(part.shape != parts[0].shape for part in parts) or parts[0].dim() < least:
        raise CheckpointError(f"'{name}' has impossible shapes: {[list(part.shape) for part in parts]}")
    if split == "thirds" and len(parts[0]) % 3:
        raise CheckpointError(f"'{name}' has impossible shapes: {[list(part.shape) for part in parts]}")
    if split == "replicated":
        if any(not torch.equal(part, parts[0]) for part in parts[1:]):
            raise CheckpointError(f"'{name}' must be the same in every tensor-parallel file, and is not")
        return parts[0]
    if split == "thirds":
        thirds = [part.chunk(3) for part in parts]
        return torch.cat([third[which] for which in range(3) for third in thirds])
    return torch.cat(parts, dim=1 if split == "columns" else 0)


def _cut(name: str, split: _Split, weight: Tensor, count: int) -> list[Tensor]:
    if split == "replicated":
        return [weight] * count
    axis = 1 if split == "columns" else 0
    blocks = 3 if split == "thirds" else 1
    if weight.shape[axis] % (count * blocks):
        raise CheckpointError(f"'{name}' {list(weight.shape)} cannot be cut into {count} tensor-parallel parts")
    if split == "thirds":
        thirds = [third.chunk(count) for third in weight.chunk(3)]
        return [torch.cat([third[rank] for third in thirds]) for rank in range(count)]
    return list(weight.chunk(count, dim=axis))

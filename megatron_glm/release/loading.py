"""Reading a release with our own code; transformers is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_glm.errors import CheckpointError
from megatron_glm.json_reading import json_object, shown
from megatron_glm.release.description import MODEL_TYPE
from megatron_glm.release.manifest import check_release
from megatron_glm.tokenizer.description import DESCRIPTION_FILE

CONFIG = "config.json"

if TYPE_CHECKING:
    from megatron_glm.model.glm import GLM
    from megatron_glm.tokenizer.base import Tokenizer


def load_release(directory: str | Path) -> tuple[GLM, Tokenizer]:
    """The model, in fp32 on the CPU and in evaluation mode, and its tokenizer.

    Raises:
        CheckpointError: no release, a missing or changed file, or weights that are not those of its config.json.
        TokenizerError: the tokenizer does not fit itself.
    """
    from megatron_glm.release.weights import weight_files
    from megatron_glm.tokenizer.loading import load_tokenizer

    directory = Path(directory)
    listed = check_release(directory).files
    if lacking := [name for name in (CONFIG, DESCRIPTION_FILE) if name not in listed]:
        raise CheckpointError(f"{directory}: its manifest lists no {lacking[0]}; copy the release again")
    paths = weight_files(directory, listed)
    description = read_release_config(directory)
    tokenizer = load_tokenizer(directory)
    if tokenizer.vocab_size != description["num_ids"]:
        raise CheckpointError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} ids, config.json says {description['num_ids']}"
        )
    model = _empty_model(directory, description, paths)
    _load_weights(directory, model, paths)
    return model.eval(), tokenizer


def read_release_config(directory: str | Path) -> dict[str, Any]:
    """config.json of a release.

    Raises:
        CheckpointError: it cannot be read, or describes another kind of model.
    """
    path = Path(directory) / CONFIG
    try:
        description = json_object(path.read_bytes())
        model_type = description["model_type"]
    except (OSError, LookupError, ValueError) as error:
        raise CheckpointError(f"{path}: not the configuration of a release ({error})") from error
    if model_type != MODEL_TYPE:
        raise CheckpointError(f"{path}: model_type is {shown(model_type)}, this program reads {MODEL_TYPE!r}")
    if type(description.get("num_ids")) is not int or type(description.get("task_masks")) is not bool:
        raise CheckpointError(f"{path}: num_ids must be a number, and task_masks true or false; copy the release again")
    return description


def _empty_model(directory: Path, description: dict[str, Any], paths: Sequence[Path]) -> GLM:
    from pydantic import ValidationError

    from megatron_glm.config.explaining import explain
    from megatron_glm.config.schema import Model
    from megatron_glm.model.glm import GLM
    from megatron_glm.release.weights import check_shapes, stored_shapes

    try:
        config = Model(**{name: description[name] for name in Model.model_fields})
    except KeyError as error:
        raise CheckpointError(f"{directory / CONFIG}: not the sizes of a GLM: {error} is missing") from error
    except ValidationError as error:
        raise CheckpointError(f"{directory / CONFIG}: not the sizes of a GLM: {explain(error, Model)}") from error
    check_shapes(stored_shapes(paths), config, description["num_ids"], directory)
    return GLM(config, num_ids=description["num_ids"], seed=None)


def _load_weights(directory: Path, model: GLM, paths: Sequence[Path]) -> None:
    import torch

    from megatron_glm.release.weights import stored_weights

    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in stored_weights(paths):
            parameters[name].copy_(weight)

"""Reading a release with our own code; transformers is not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_glm.errors import CheckpointError
from megatron_glm.release.description import MODEL_TYPE
from megatron_glm.release.manifest import check_release

if TYPE_CHECKING:
    from megatron_glm.model.glm import GLM
    from megatron_glm.tokenizer.base import Tokenizer


def load_release(directory: str | Path) -> tuple[GLM, Tokenizer]:
    """The model, in fp32 on the CPU and in evaluation mode, and its tokenizer.

    Raises:
        CheckpointError: no release, a missing or changed file, or weights that are not those of its config.json.
        TokenizerError: the tokenizer does not fit itself.
    """
    from megatron_glm.tokenizer.loading import load_tokenizer

    directory = Path(directory)
    check_release(directory)
    description = read_release_config(directory)
    tokenizer = load_tokenizer(directory)
    if tokenizer.vocab_size != description["num_ids"]:
        raise CheckpointError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} ids, config.json says {description['num_ids']}"
        )
    model = _empty_model(directory, description)
    _load_weights(directory, model)
    return model.eval(), tokenizer


def read_release_config(directory: str | Path) -> dict[str, Any]:
    """config.json of a release.

    Raises:
        CheckpointError: it cannot be read, or describes another kind of model.
    """
    path = Path(directory) / "config.json"
    try:
        description = json.loads(path.read_bytes())
        model_type = description["model_type"]
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: not the configuration of a release ({error})") from error
    if model_type != MODEL_TYPE:
        raise CheckpointError(f"{path}: model_type is {model_type!r}, this program reads {MODEL_TYPE!r}")
    return description


def _empty_model(directory: Path, description: dict[str, Any]) -> GLM:
    from pydantic import ValidationError

    from megatron_glm.config.schema import Model
    from megatron_glm.model.glm import GLM

    try:
        config = Model(**{name: description[name] for name in Model.model_fields})
    except (KeyError, ValidationError) as error:
        raise CheckpointError(f"{directory / 'config.json'}: not the sizes of a GLM: {error}") from error
    return GLM(config, num_ids=description["num_ids"], seed=None)


def _load_weights(directory: Path, model: GLM) -> None:
    import torch

    from megatron_glm.release.weights import stored_weights

    missing = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in stored_weights(directory):
            if name not in missing:
                raise CheckpointError(f"{directory}: the weights hold {name!r} twice, or the model has no such")
            parameter = missing.pop(name)
            if parameter.shape != weight.shape:
                raise CheckpointError(
                    f"{directory}: {name} has shape {list(weight.shape)}, config.json asks for {list(parameter.shape)}"
                )
            parameter.copy_(weight)
    if missing:
        raise CheckpointError(f"{directory}: the weights lack {next(iter(missing))} and {len(missing) - 1} others")

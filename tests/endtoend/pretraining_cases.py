"""What the processes of an end-to-end test run."""

from __future__ import annotations

from functools import partial

import pytest

from megatron_glm.config.loading import load_config
from megatron_glm.errors import UserError
from megatron_glm.training import zero_engine
from megatron_glm.training.pretraining import pretrain


def train(config: str, *overrides: str) -> None:
    pretrain(load_config(config, overrides))


def train_with_dropout_seed(seed: int, config: str, *overrides: str) -> None:
    """The same run but for its dropout masks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero_engine, "WeightedLoss", partial(_with_seed, zero_engine.WeightedLoss, seed))
        train(config, *overrides)


def _with_seed(build, seed, model, dropout_seed):
    return build(model, dropout_seed=seed)


def train_until_failure(config: str, *overrides: str) -> str:
    """The message of the error that ends the run."""
    try:
        train(config, *overrides)
    except UserError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"

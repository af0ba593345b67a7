"""What the processes of an end-to-end test run."""

from __future__ import annotations

from functools import partial

import pytest
from deepspeed.accelerator import get_accelerator

from megatron_glm.config.loading import load_config
from megatron_glm.errors import UserError
from megatron_glm.training.engines import zero_engine
from megatron_glm.training.pretraining import pretrain


def train(config: str, *overrides: str) -> None:
    pretrain(load_config(config, overrides))


def train_with_dropout_seed(seed: int, config: str, *overrides: str) -> None:
    """The same run but for its dropout masks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero_engine, "WeightedLoss", partial(_with_seed, zero_engine.WeightedLoss, seed))
        train(config, *overrides)


def _with_seed(build, seed, model, dropout_seed, **options):
    return build(model, dropout_seed=seed, **options)


def train_in_fp16(config: str, *overrides: str) -> None:
    """A run in fp16, which DeepSpeed refuses on a CPU though it computes in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
        train(config, "train.precision=fp16", *overrides)


def train_until_failure(config: str, *overrides: str) -> str:
    """The message of the error that ends the run."""
    try:
        train(config, *overrides)
    except UserError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"

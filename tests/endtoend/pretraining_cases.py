"""What the processes of an end-to-end test run."""

from __future__ import annotations

import errno
import os
from functools import partial

import pytest
from deepspeed.accelerator import get_accelerator

from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.command import exit_code_of
from megatron_glm.config.loading import load_config
from megatron_glm.errors import CheckpointError, UserError
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


def train_compiled(programs: str, config: str, *overrides: str) -> None:
    """A run whose compiled programs are kept in a directory."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = programs
    train(config, *overrides)


def train_without_compiler(programs: str, config: str, *overrides: str) -> str:
    """The message of the error that ends the run on a machine without a C++ compiler."""
    import torch._inductor.config

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = programs
    with torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler")}):
        return train_until_failure(config, *overrides)


def train_with_another_setting_on_rank_1(other: str, config: str, *overrides: str) -> str:
    """The message of the error that ends the run, where one machine has a configuration of its own."""
    return train_until_failure(config, *overrides, *([other] if os.environ["RANK"] == "1" else []))


def train_where_rank_1_reads_no_checkpoint(config: str, *overrides: str) -> str:
    """How the run ends on each rank, where the disk of one machine fails in the middle of a load."""
    read = CheckpointReader.read_rectangle

    def failing(reader, name, kind, wanted):
        try:
            if os.environ["RANK"] == "1" and name == "transformer.final_layernorm.bias":
                raise OSError(errno.EIO, "Input/output error")
        except OSError as error:
            raise CheckpointError(f"{reader.path}: '{name}' cannot be read") from error
        return read(reader, name, kind, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointReader, "read_rectangle", failing)
        try:
            train(config, *overrides)
        except UserError as error:
            return f"{type(error).__name__}: {error} ({exit_code_of(error)})"
        except RuntimeError:
            return "the other side has gone"
    return "no error"


def train_until_failure(config: str, *overrides: str) -> str:
    """The message of the error that ends the run."""
    try:
        train(config, *overrides)
    except UserError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"

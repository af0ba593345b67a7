"""What the processes of a fault test run."""

from __future__ import annotations

import os

from megatron_glm.config.loading import load_config
from megatron_glm.training.fault_points import VARIABLE
from megatron_glm.training.pretraining import pretrain


def train(config: str, faults: str, *overrides: str) -> None:
    """A run, with the faults of the variable."""
    os.environ[VARIABLE] = faults
    pretrain(load_config(config, overrides))


def train_unread(config: str, *overrides: str) -> None:
    """A run on a console whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    for descriptor in (1, 2):
        os.dup2(writer, descriptor)
    pretrain(load_config(config, overrides))

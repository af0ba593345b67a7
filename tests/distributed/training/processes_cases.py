"""Processes that do not find each other."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch

from megatron_glm.errors import RankError
from megatron_glm.training.processes import distributed_processes


def alone_of_two(rank: int, port: int) -> str:
    """The message of a process whose other half never comes."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    try:
        with distributed_processes(threads=1, timeout=timedelta(seconds=1)):
            return "met"
    except RankError as error:
        return str(error)


def ninth_of_eight_gpus() -> str:
    """The message of a process for which its node has no GPU."""
    os.environ |= {"RANK": "17", "LOCAL_RANK": "8"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 8)
        try:
            with distributed_processes(threads=1):
                return "met"
        except RankError as error:
            return str(error)


def accelerator_of_another_device() -> str:
    """The message where DeepSpeed has been told to compute on the processor of a machine with GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 8)
        patch.setattr(torch.cuda, "set_device", lambda device: None)
        try:
            with distributed_processes(threads=1):
                return "met"
        except RankError as error:
            return str(error)

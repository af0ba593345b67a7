"""Processes that do not find each other."""

from __future__ import annotations

import os
from datetime import timedelta

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

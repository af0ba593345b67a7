"""Runs in which a step goes wrong, on one rank only and as a function of its samples."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterable

import pytest
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from megatron_glm.training.engines.pipeline_engine import PipelineEngine
from megatron_glm.training.engines.zero_engine import ZeroEngine
from tests.endtoend import pretraining_cases as cases

KIND = (ZeroEngine, PipelineEngine)


def train(config: str, faults: dict[str, Iterable[int]], *overrides: str) -> str:
    """Train with faults: by kind, the samples whose step has it on the rank that has the sample.

    `killed in call` counts the steps as they are made: a run that goes back makes one again.

    Returns:
        The message of the error that ends the run.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)  # a CPU computes in it, if slowly
        for engine in KIND:
            patch.setattr(engine, "accumulate", _faulty(engine.accumulate, faults))
        return cases.train_until_failure(config, *overrides)


def _faulty(accumulate, faults):
    calls = []

    def faulty(engine, batches, weights, *, embedding_gradient=1.0):
        here = {sample for batch in batches for sample, *_ in batch.row_keys.spans}
        calls.append(None)
        if len(calls) in faults.get("killed in call", ()) and dist.get_rank() != 0:
            os.kill(os.getpid(), signal.SIGKILL)
        found = {kind for kind, samples in faults.items() if here & set(samples)}
        if "gradient" in found:
            weights = [math.nan] * 3
        sums = accumulate(engine, batches, weights, embedding_gradient=embedding_gradient)
        if "loss" in found and dist.get_rank() != 0:
            sums = torch.full_like(sums, math.inf)
        return sums * 50 if "spike" in found else sums

    return faulty

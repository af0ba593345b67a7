"""Layouts whose norms and GELU are compiled, beside the same without."""

from __future__ import annotations

import os
from typing import Any

from deepspeed.accelerator import get_accelerator

from megatron_glm.config.schema import Config
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.training.engines.compilation import settle_compilation
from tests.distributed.training import cases, layouts
from tests.distributed.training.option_cases import with_options

STEPS = 2


def compiled(settings: Config) -> Config:
    return with_options(settings, train={"compile": "always"})


def run(configurations: list[Config], programs: str) -> list[dict[str, Any]]:
    """What `layouts.steps` finds of each, an evaluation after it, and how much was compiled before and in all.

    Args:
        programs: the directory in which torch.compile keeps what it has compiled.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = programs
    get_accelerator().is_fp16_supported = lambda: True  # a CPU computes in it, if slowly
    ahead: list[int] = []

    def make(settings: Config, ranks: Ranks) -> tuple[cases.Engine, Groups]:
        settled = settle_compilation(settings, ranks)
        ahead.append(_graphs())
        return cases.make_engine(settled.config, ranks)

    def train(settings: Config, engine: cases.Engine, groups: Groups) -> dict[str, Any]:
        found = layouts.steps(STEPS, settings, engine, groups)
        share = [batch for step in range(2) for batch in cases.batches(settings, step=step, rank=0, size=1)]
        found["validation"] = [float(engine.evaluate([batch])[0].sum()) for batch in share[:4]]
        return found | {"compiled_in_all": _graphs()}

    results = layouts.in_turn(train, configurations, make)
    return [result | {"compiled_ahead": number} for result, number in zip(results, ahead, strict=True)]


def _graphs() -> int:
    """How much this process has compiled so far."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]

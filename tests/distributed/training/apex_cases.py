"""Steps under an optimizer that keeps its books as NVIDIA's apex does."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from deepspeed.runtime.zero import utils as zero_utils

from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.writing import save_checkpoint
from megatron_glm.config.schema import Config
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import DistributedRanks
from megatron_glm.training.engines import optimizer
from tests.distributed.training import cases, layouts

HALF = 2  # steps before the checkpoint, and after it


class FusedAdam(torch.optim.Optimizer):
    """Counts updates in the groups and has moments alone in the state; its `zero_grad` takes no argument."""

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, adam_w_mode=True,
                 weight_decay=0.0):  # fmt: skip
        assert adam_w_mode
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def zero_grad(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            (beta1, beta2), count = group["betas"], group["step"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                gradient = parameter.grad
                mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
                square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                spread = (square / (1 - beta2**count)).sqrt_().add_(group["eps"])
                parameter.addcdiv_(mean, spread, value=-group["lr"] / (1 - beta1**count))


def run(configs: list[Config], directory: str, *, fused: bool, resume: bool) -> list[list[float]]:
    """The losses of each layout: of two halves with a checkpoint between them, or of the second from it alone."""
    with pytest.MonkeyPatch.context() as patch:
        if fused:
            parts = ModuleType("apex.optimizers")
            parts.FusedAdam = FusedAdam
            patch.setitem(sys.modules, "apex", ModuleType("apex"))
            patch.setitem(sys.modules, "apex.optimizers", parts)
            patch.setattr(optimizer, "apex_updates", lambda settings, zero_stage: True)
            # Where apex is there, DeepSpeed knows its optimizer.
            patch.setattr(zero_utils, "ZERO_SUPPORTED_OPTIMIZERS", [FusedAdam])
        return layouts.in_turn(partial(_losses, Path(directory), resume), configs)


def _losses(directory: Path, resume: bool, settings: Config, engine: cases.Engine, groups: Groups) -> list[float]:
    place = directory / f"{settings.parallel.zero_stage} {settings.train.precision} {settings.parallel.pipeline}"
    losses = []
    if resume:
        engine.load(CheckpointReader(next(place.iterdir())), step=HALF)
    else:
        losses += [cases.one_step(settings, engine, groups, step)[0] for step in range(HALF)]
        save_checkpoint(
            place,
            run_id="test",
            step=HALF,
            fragments=engine.fragments(),
            shapes=engine.shapes,
            state={},
            ranks=DistributedRanks(),
        )
    return losses + [cases.one_step(settings, engine, groups, step)[0] for step in range(HALF, 2 * HALF)]

"""AdamW with the decayed and the undecayed parameters in a group each."""

from __future__ import annotations

from importlib import import_module

import torch
from torch import nn

from megatron_glm.config import schema
from megatron_glm.model.decay import decayed_names
from megatron_glm.training.engines.apex import apex_updates


def build_optimizer(module: nn.Module, settings: schema.Optimizer, *, zero_stage: int) -> torch.optim.Optimizer:
    """The optimizer of a run; its learning rate is set before every step.

    Raises:
        ConfigError: NVIDIA's apex is asked for and not there, or `apex` is the PyPI package of that name.
    """
    named = dict(module.named_parameters())
    decayed = decayed_names(named)
    groups = [
        {"params": [p for name, p in named.items() if name in decayed], "weight_decay": settings.weight_decay},
        {"params": [p for name, p in named.items() if name not in decayed], "weight_decay": 0.0},
    ]
    options = {"lr": settings.learning_rate, "betas": (settings.beta1, settings.beta2), "eps": settings.eps}
    if apex_updates(settings, zero_stage=zero_stage):
        return import_module("apex.optimizers").FusedAdam(groups, **options, adam_w_mode=True)
    return torch.optim.AdamW(groups, **options, fused=True)

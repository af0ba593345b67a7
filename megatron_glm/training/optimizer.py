"""AdamW with the decayed and the undecayed parameters in a group each."""

from __future__ import annotations

import torch
from torch import nn

from megatron_glm.config import schema
from megatron_glm.model.decay import decayed_names


def build_optimizer(module: nn.Module, settings: schema.Optimizer) -> torch.optim.AdamW:
    """The optimizer of a run; its learning rate is set before every step."""
    named = dict(module.named_parameters())
    decayed = decayed_names(named)
    groups = [
        {"params": [p for name, p in named.items() if name in decayed], "weight_decay": settings.weight_decay},
        {"params": [p for name, p in named.items() if name not in decayed], "weight_decay": 0.0},
    ]
    betas = (settings.beta1, settings.beta2)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas, eps=settings.eps, fused=True)

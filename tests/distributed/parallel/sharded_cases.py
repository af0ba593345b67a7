"""A model divided over the ranks of one group, for the comparison with the whole one."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from megatron_glm.config.schema import Model, Recompute
from megatron_glm.data.batch import collate
from megatron_glm.model.glm import GLM
from megatron_glm.objective.sample import Objective
from megatron_glm.parallel.sharding import shard_model
from megatron_glm.training.engines.loss_module import WeightedLoss
from megatron_glm.training.processes import distributed_processes
from tests.distributed.training.cases import NUM_IDS, sample

MODEL = Model(
    num_layers=3, hidden_size=32, num_attention_heads=4, max_positions=64, hidden_dropout=0.1, attention_dropout=0.1
)


def batch():
    return collate([sample(index) for index in range(7)], pad_id=0)


def loss_and_gradients(model: GLM) -> tuple[float, dict[str, np.ndarray], float]:
    """The weighted loss, the gradient of each parameter and the summed nll of one micro-batch."""
    weights = torch.tensor([0.5, 0.2, 0.01])
    loss, sums = WeightedLoss(model.train(), dropout_seed=7)(batch(), weights)
    loss.backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    return loss.item(), gradients, sums[Objective.TOKEN].item()


def whole(recompute: Recompute = "none"):
    return loss_and_gradients(GLM(MODEL, num_ids=NUM_IDS, seed=3, recompute=recompute))


def sharded(spread: bool, recompute: Recompute):
    with distributed_processes(threads=1):
        shard = partial(shard_model, group=dist.group.WORLD, heads=MODEL.num_attention_heads, spread=spread)
        return loss_and_gradients(GLM(MODEL, num_ids=NUM_IDS, seed=3, recompute=recompute, shard=shard))

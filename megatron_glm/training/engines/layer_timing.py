"""What the layers of a model cost on these devices: one of each kind is built as this rank would hold it, and timed.

The kinds are the first layer with the embeddings, one between, and the last with norm, output layer and loss. They
run on real rows of the run, forward and backward, with its precision, dropout, recomputation and tensor parallelism,
so that the costs have all that a count of multiply-adds leaves out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from megatron_glm.config.schema import Config
from megatron_glm.data.batch import Batch
from megatron_glm.model.precision import TORCH_DTYPES
from megatron_glm.objective.sample import Objective
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.training.engines.model_building import build_layers
from megatron_glm.training.engines.pipeline_module import StageLoss

_KINDS = 3
_REPEATS = 2  # of each row; the faster one counts, as what disturbs a measurement only adds to it
_STD = 0.02  # of all weights: their values cost nothing, but nan and denormal numbers may


def measured_costs(
    config: Config, num_ids: int, batches: Sequence[Batch], *, groups: Groups, ranks: Ranks
) -> tuple[float, ...]:
    """Seconds of each layer for a micro-batch, forward and backward; the same on all ranks, which call this together.

    Args:
        batches: micro-batches of this replica, not empty: the mean over them counts, the median over the ranks.
    """
    own = [_seconds(config, num_ids, batches, kind, groups) for kind in range(_KINDS)]
    get_accelerator().empty_cache()  # of sizes that the run itself will not ask for
    first, inner, last = (statistics.median(of_kind) for of_kind in zip(*ranks.gather(own), strict=True))
    return (first, *[inner] * (config.model.num_layers - 2), last)


def _seconds(config: Config, num_ids: int, batches: Sequence[Batch], kind: int, groups: Groups) -> float:
    """The mean over some micro-batches of the time of one kind of layer."""
    three = config.model_copy(update={"model": config.model.model_copy(update={"num_layers": _KINDS})})
    device, dtype = torch.device(get_accelerator().current_device_name()), TORCH_DTYPES[config.train.precision]
    with torch.device(device):
        glm = build_layers(three, num_ids, groups, range(kind, kind + 1), seed=None).to(dtype)
    for parameter in glm.parameters():
        torch.nn.init.normal_(parameter, std=_STD)
    stage = StageLoss(glm, dropout_seed=config.train.seed, label_smoothing=config.train.label_smoothing)
    weights = torch.ones(len(Objective), device=device)
    spread = groups.layout.tensor if config.parallel.sequence else 1
    _time(stage, batches[0].to(device), weights, spread, dtype)  # the first run starts libraries
    return statistics.fmean(
        min(_time(stage, batch.to(device), weights, spread, dtype) for _ in range(_REPEATS)) for batch in batches
    )


def _time(stage: StageLoss, batch: Batch, weights: Tensor, spread: int, dtype: torch.dtype) -> float:
    """Seconds of one forward and backward pass; `spread`: ranks that divide the tokens between the layers."""
    shape = len(batch.input_ids) // spread, stage.glm.config.hidden_size
    hidden = torch.randn(shape, dtype=dtype, device=weights.device, requires_grad=not stage.glm.is_first)
    stage.expect([batch], weights)
    get_accelerator().synchronize()
    started = time.perf_counter()
    output = stage(hidden)
    output.backward(torch.ones_like(output))
    get_accelerator().synchronize()
    return time.perf_counter() - started

"""Where DeepSpeed keeps the fp32 weights and Adam moments of each parameter on this rank.

Every ZeRO stage hides them elsewhere; here they become one list of flat views, each with the name
of its parameter and its place in it. Saving copies out of the views, loading copies into them, and
`publish_weights` then renews the copies that the forward pass reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import Tensor


@dataclass(frozen=True)
class LocalPart:
    """Flat fp32 views [n] of elements start … start + n of one parameter."""

    name: str
    start: int
    weight: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


def local_parts(engine: DeepSpeedEngine) -> Iterator[LocalPart]:
    """What this rank holds. Over the ranks the parts cover each parameter once (stage 0: each rank holds all)."""
    by_stage = {0: _replicated_parts, 1: _linked_parts, 2: _linked_parts, 3: _partitioned_parts}
    return by_stage[engine.zero_optimization_stage()](engine)


@dataclass(frozen=True)
class WorkingPart:
    """Elements start … start + n of a parameter as the forward pass reads them: flat [n], in its precision.

    Attributes:
        is_partition: each rank of a replica group has another part; else all have this one.
    """

    name: str
    start: int
    values: Tensor
    is_partition: bool


def working_parts(engine: DeepSpeedEngine) -> Iterator[WorkingPart]:
    """The weights that this rank computes with, or its partitions of those that ZeRO-3 gathers when needed."""
    for name, parameter in engine.module.named_parameters():
        if engine.zero_optimization_stage() < 3 or parameter.numel():  # stage 3 keeps small ones whole
            yield WorkingPart(name, 0, parameter.detach().flatten(), False)
            continue
        partition = parameter.ds_tensor.detach()
        start = partition.numel() * engine.optimizer._get_param_partition_rank(parameter)
        count = min(partition.numel(), parameter.ds_numel - start)
        if count > 0:  # else all of it is padding
            yield WorkingPart(name, start, partition.flatten()[:count], True)


def create_moments(engine: DeepSpeedEngine) -> None:
    """Give every optimizer tensor its moments before the first update does. Once: DeepSpeed links to them."""
    optimizer = _torch_optimizer(engine)
    for tensor in _optimizer_tensors(engine):
        optimizer.state[tensor] = {
            "step": torch.zeros((), dtype=torch.float32, device=tensor.device),
            "exp_avg": torch.zeros_like(tensor),
            "exp_avg_sq": torch.zeros_like(tensor),
        }
    if engine.zero_optimization_stage() in (1, 2):
        engine.optimizer._lazy_init_hp_params_optimizer_state()


def set_update_count(engine: DeepSpeedEngine, count: int) -> None:
    """Tell Adam how many updates its moments have seen, for the bias correction."""
    optimizer = _torch_optimizer(engine)
    for tensor in _optimizer_tensors(engine):
        optimizer.state[tensor]["step"].fill_(count)
    for group in optimizer.param_groups:
        group["step"] = count  # apex counts here


def publish_weights(engine: DeepSpeedEngine, own_weight: Callable[[str], Tensor]) -> None:
    """Renew what the forward pass reads after the fp32 weights were changed.

    Args:
        own_weight: name -> this process's fp32 weight, for the stages that do not partition it.
    """
    stage = engine.zero_optimization_stage()
    if stage < 3:
        for name, parameter in engine.module.named_parameters():
            parameter.data.copy_(own_weight(name).view_as(parameter))
        return
    zero = engine.optimizer
    for group in range(len(zero.fp32_partitioned_groups_flat)):
        zero._reassign_or_swap_out_partitioned_parameters(group)
    if zero.persistent_parameters:  # small parameters whose whole copy stays on every rank
        zero.persistent_parameters[0].partition(zero.persistent_parameters)
        zero.persistent_parameters[0].all_gather(zero.persistent_parameters)


def _torch_optimizer(engine: DeepSpeedEngine) -> torch.optim.Optimizer:
    return engine.optimizer if engine.zero_optimization_stage() == 0 else engine.optimizer.optimizer


def _optimizer_tensors(engine: DeepSpeedEngine) -> list[Tensor]:
    """The tensors that torch's optimizer updates: parameters, or flat fp32 partitions of them."""
    zero = engine.optimizer
    if engine.zero_optimization_stage() == 0:
        return [parameter for parameter in engine.module.parameters() if parameter.requires_grad]
    if isinstance(zero, BF16_Optimizer):
        return list(zero.fp32_groups_flat_partition)
    if engine.zero_optimization_stage() == 3:
        return list(zero.fp32_partitioned_groups_flat)
    return list(zero.single_partition_of_fp32_groups)


def _replicated_parts(engine: DeepSpeedEngine) -> Iterator[LocalPart]:
    state = _torch_optimizer(engine).state
    for name, parameter in engine.module.named_parameters():
        moments = state[parameter]
        yield LocalPart(
            name,
            0,
            parameter.data.view(-1),
            moments["exp_avg"].view(-1),
            moments["exp_avg_sq"].view(-1),
        )


def _linked_parts(engine: DeepSpeedEngine) -> Iterator[LocalPart]:
    """ZeRO 1, 2 and BF16_Optimizer: `_hp_mapping` links a parameter to its range of the flat partition."""
    for name, parameter in engine.module.named_parameters():
        mapping = parameter._hp_mapping
        if mapping is not None:  # else the parameter lies wholly in other ranks' partitions
            yield LocalPart(
                name,
                mapping.lp_fragment_address.start,
                mapping.hp_fragment,
                mapping.get_optim_state_fragment("exp_avg"),
                mapping.get_optim_state_fragment("exp_avg_sq"),
            )


def _partitioned_parts(engine: DeepSpeedEngine) -> Iterator[LocalPart]:
    """ZeRO 3: each parameter is cut into equal partitions, the last one padded."""
    zero = engine.optimizer
    for name, parameter in engine.module.named_parameters():
        group, offset, length = zero.grad_position[zero.get_param_id(parameter)]
        start = length * zero._get_param_partition_rank(parameter)
        count = min(length, parameter.ds_numel - start)
        if count > 0:
            flat = zero.fp32_partitioned_groups_flat[group]
            moments = zero.optimizer.state[flat]
            yield LocalPart(
                name,
                start,
                flat.narrow(0, offset, count),
                moments["exp_avg"].narrow(0, offset, count),
                moments["exp_avg_sq"].narrow(0, offset, count),
            )

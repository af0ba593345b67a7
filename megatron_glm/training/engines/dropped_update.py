"""An update that is not made: the accumulated gradients are forgotten, and nothing else changes.

DeepSpeed has a way to leave an update out for each of its optimizers, which it takes where an fp16 gradient overflows.
Here they are made to take it for a reason of ours, without a word to the loss scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.engine import DeepSpeedEngine


@contextmanager
def dropped_update(engine: DeepSpeedEngine) -> Iterator[None]:
    """Within the block a step of the engine leaves weights, moments, count of updates and loss scale as they are.

    All ranks must be of one mind: parts of a step are collectives.
    """
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
    if stage == 0:
        replaced = {"step": _nothing}  # the engine itself clears the gradients after a step
    elif isinstance(optimizer, BF16_Optimizer):
        replaced = {"step": lambda *_: _clear_sums(optimizer)}
    elif stage == 3:
        replaced = {
            "_overflow_check_and_loss_scale_update": lambda **_: _overflow(optimizer),
            "_update_scale": _nothing,
        }
    else:
        replaced = {
            "check_grad_overflow": True,
            "check_overflow": lambda **_: _overflow(optimizer),
            "_update_scale": _nothing,
        }
    with _replaced(optimizer, replaced):
        yield
    if stage:
        optimizer.overflow = False  # it was none
    forget_gradients(engine)


def forget_gradients(engine: DeepSpeedEngine) -> None:
    """After a step of the engine, made or left out: nothing of its gradients is left for the next one.

    With an offloaded optimizer and gradients that are summed in fp32, DeepSpeed 0.19.8 clears the sums where it makes
    an update, but not where it leaves one out: the next step would add to them, and after one overflow all overflow.
    """
    optimizer = engine.optimizer
    if engine.zero_optimization_stage() in (1, 2) and not isinstance(optimizer, BF16_Optimizer):
        for sums in (optimizer.averaged_gradients, optimizer.all_grad_tensors):
            sums.update(dict.fromkeys(sums))


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _overflow(optimizer: Any) -> None:
    optimizer.overflow = True


def _clear_sums(optimizer: BF16_Optimizer) -> None:
    optimizer.clear_hp_grads()
    optimizer.clear_lp_grads()


@contextmanager
def _replaced(target: Any, attributes: dict[str, Callable | bool]) -> Iterator[None]:
    own = {name: vars(target)[name] for name in attributes if name in vars(target)}
    vars(target).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(target)[name]
        vars(target).update(own)

"""How a global batch is split: the arithmetic, and the error that shows it."""

from __future__ import annotations

from megatron_glm.errors import ConfigError


def accumulation_steps(global_batch_size: int, micro_batch_size: int, data_parallel: int) -> int:
    """Micro-batches of one replica in a step.

    Raises:
        ConfigError: the global batch is not micro_batch_size × accumulation × data parallel.
    """
    step = micro_batch_size * data_parallel
    if global_batch_size % step == 0:
        return global_batch_size // step
    below = global_batch_size // step * step
    nearest = f"nearest are {below} and {below + step}" if below else f"the smallest is {step}"
    raise ConfigError(
        f"train.global_batch_size: {global_batch_size} is not micro_batch_size × accumulation × data parallel"
        f" = {micro_batch_size} × a × {data_parallel}; {nearest}"
    )

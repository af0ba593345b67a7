"""Starting DeepSpeed's engine: quietly, and with its complaints told as errors of our configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config import DeepSpeedConfigError
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero.utils import ZeRORuntimeException

from megatron_glm.config.schema import Config
from megatron_glm.errors import ConfigError

_AMPERE = (8, 0)
# pydantic's is a ValueError
_REFUSALS = (
    AttributeError,
    AssertionError,
    KeyError,
    NotImplementedError,
    TypeError,
    ValueError,
    DeepSpeedConfigError,
    ZeRORuntimeException,
)


def start_deepspeed(settings: Config, /, **arguments: Any) -> DeepSpeedEngine:
    """deepspeed.initialize with these arguments.

    Raises:
        ConfigError: DeepSpeed refuses what the section for it says, or the device does not know the precision.
    """
    _check_precision(settings.train.precision)
    with contextlib.redirect_stdout(None), _expert_section_at_fault(settings):  # DeepSpeed prints its memory use
        engine, *_ = deepspeed.initialize(**arguments, dist_init_required=False)
    return engine


def _check_precision(precision: str) -> None:
    accelerator = get_accelerator()
    if precision == "fp16" and not accelerator.is_fp16_supported():
        device = accelerator.device_name()
        raise ConfigError(f"train.precision: fp16 is not supported by DeepSpeed on this device ({device}); use bf16")
    # torch calls bf16 supported on older GPUs too, where it computes in fp32; kernels of Triton do not compile there.
    if precision == "bf16" and accelerator.device_name() == "cuda" and torch.cuda.get_device_capability() < _AMPERE:
        found = ".".join(map(str, torch.cuda.get_device_capability()))
        raise ConfigError(
            f"train.precision: bf16 needs a GPU of compute capability 8.0 or more (Ampere), this one has {found};"
            " use fp16"
        )


@contextlib.contextmanager
def _expert_section_at_fault(config: Config) -> Iterator[None]:
    """What DeepSpeed raises while it reads its configuration, told as an error of our section for it."""
    try:
        yield
    except _REFUSALS as error:
        if not config.deepspeed:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"deepspeed: DeepSpeed refuses this section ({reason}); mend or remove it") from error

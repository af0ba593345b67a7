"""Whether norms and GELU of a run are compiled: tried on every rank before there is a model, and decided for all alike.

A kernel that cannot be compiled must show in the first minute, not in the third hour. So all that a run will use is
compiled here, for training and evaluation, and forward and backward passes have run once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn

from megatron_glm.config.schema import Config
from megatron_glm.errors import ConfigError
from megatron_glm.model.layer import LAYERNORM_EPS
from megatron_glm.model.precision import TORCH_DTYPES
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.training.engines.apex import apex_normalizes
from megatron_glm.training.engines.compiled_parts import CompiledParts, is_compiled

_ROWS = 64  # of what the kernels run on once; they take every number of rows
_REASON = 300  # characters of a compiler's error


@dataclass(frozen=True)
class Compilation:
    """What was decided.

    Attributes:
        config: the run's, with train.compile decided: what a model is built from.
        told: in words, for the banner.
    """

    config: Config
    told: str

    @property
    def is_on(self) -> bool:
        return self.config.train.compile == "always"


def settle_compilation(config: Config, ranks: Ranks) -> Compilation:
    """Compile what the configuration asks for, on all ranks, which call this together.

    Where one rank cannot, all do without if train.compile is `auto`: the run is then slower, and the banner says why.

    Raises:
        ConfigError: train.compile is `always` and a rank cannot, or one lacks the apex that is asked for; on all.
    """
    wanted = config.train.compile
    if not is_compiled(config.train):
        why = "on a CPU torch's own norms are faster" if wanted == "auto" else "train.compile is never"
        return _settled(config, "never", f"nothing: {why}")
    started, by_apex, refusal, failure = time.monotonic(), False, None, None
    try:
        by_apex = apex_normalizes(config.train)
        _compile(config, norms=not by_apex)
    except ConfigError as error:
        refusal = str(error)
    except Exception as error:  # of Dynamo, Inductor, Triton, a compiler or a driver: each has kinds of its own
        failure = _reason(error)
    reports = ranks.gather([refusal, failure, time.monotonic() - started])
    for rank, (refused, _, _) in enumerate(reports):
        if refused:
            raise ConfigError(f"rank {rank}: {refused}")
    failures = [f"rank {rank}: {reason}" for rank, (_, reason, _) in enumerate(reports) if reason]
    if not failures:
        parts = "bias + GELU; the norms are apex's" if by_apex else "norms, bias + GELU"
        return _settled(config, "always", f"{parts}; torch.compile took {max(took for _, _, took in reports):.0f} s")
    if wanted == "always":
        raise ConfigError(
            f"train.compile: always, but torch.compile fails on {failures[0]}; it needs a C++ compiler on a CPU, Triton"
            " and a C compiler on a GPU (`glm doctor` looks for them); mend that, or set train.compile=never"
        )
    return _settled(config, "never", f"NOTHING, and the run is slower for it: torch.compile fails on {failures[0]}")


def _settled(config: Config, compile: str, told: str) -> Compilation:
    train = config.train.model_copy(update={"compile": compile})
    return Compilation(config.model_copy(update={"train": train}), told)


def _compile(config: Config, *, norms: bool) -> None:
    """Run each part once forward and backward, and once as in evaluation, on tensors like those of the run."""
    _check_programs()
    parts, model = CompiledParts(), config.model
    device = torch.device(get_accelerator().current_device_name())
    features = 4 * model.hidden_size // config.parallel.tensor
    for learns in (True, False):
        with torch.set_grad_enabled(learns):
            for vectors in _vectors(config, model.hidden_size, device) if norms else ():
                x = _like(config, _ROWS, model.hidden_size, device=device, learns=learns)
                _backward(parts.norm(x, *vectors, (model.hidden_size,), LAYERNORM_EPS))
            x = _like(config, _ROWS, features, device=device, learns=learns)
            _backward(parts.bias_gelu(x, nn.Parameter(_like(config, features, device=device, learns=False))))
    get_accelerator().synchronize()  # what a kernel does wrong shows here


def _check_programs() -> None:
    """See that programs are not loaded from another user's directory: anybody can guess the usual name in /tmp."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir  # seconds, for those who compile

    place = Path(cache_dir())
    if place == Path(default_cache_dir()) and place.exists() and place.stat().st_uid != os.getuid():
        raise PermissionError(f"'{place}' belongs to another user; set TORCHINDUCTOR_CACHE_DIR to a directory of yours")


def _vectors(config: Config, hidden: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Weight and bias of a norm: as parameters, and as those of spread tokens are, another kind to a compiler."""
    weight, bias = (nn.Parameter(_like(config, hidden, device=device, learns=False)) for _ in range(2))
    yield weight, bias
    if config.parallel.sequence:
        yield weight.view_as(weight), bias.view_as(bias)


def _like(config: Config, *shape: int, device: torch.device, learns: bool) -> Tensor:
    dtype = TORCH_DTYPES[config.train.precision]
    return torch.zeros(*shape, dtype=dtype, device=device, requires_grad=learns)


def _backward(output: Tensor) -> None:
    if output.requires_grad:
        output.backward(torch.zeros_like(output))


def _reason(error: BaseException) -> str:
    """The first lines of what led to it, as one: a compiler's errors have pages."""
    while (cause := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = cause
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_REASON]}"

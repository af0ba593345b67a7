"""All that a run will use is compiled here, for training and evaluation, and proven once against its formula."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn

from megatron_glm.config.schema import Config
from megatron_glm.model.layer import LAYERNORM_EPS
from megatron_glm.model.precision import TORCH_DTYPES
from megatron_glm.training.engines.compiled_parts import CompiledParts, bias_gelu, layer_norm
from megatron_glm.training.engines.program_directory import remove_cut_programs, see_that_it_is_ours

_ROWS = 64  # of what the programs run on once; they take every number of rows
_LEAST_TOLERANCE = 1e-4  # of the largest entry; a program that is wrong is so by more
_TOLERANCE_STEPS = 8  # steps of a precision of few bits


def try_parts(config: Config, *, norms: bool) -> None:
    """Each part as in training, and as in evaluation, on tensors of the kinds of the run: for others it would be
    compiled anew while the run goes on.

    Raises:
        Exception: of any kind, of Dynamo, Inductor, Triton, a compiler or a driver; ArithmeticError where a program
            gives something else than its formula.
    """
    _see_that_torch_would()
    remove_cut_programs(see_that_it_is_ours())
    parts, hidden = CompiledParts(), config.model.hidden_size
    draw = _Drawn(config)
    for learns in (True, False):
        with torch.set_grad_enabled(learns):
            for vectors in _vectors(config, draw) if norms else ():
                _try(
                    lambda x, weight, bias: parts.norm(x, weight, bias, (hidden,), LAYERNORM_EPS),
                    lambda x, weight, bias: layer_norm(x, weight, bias, LAYERNORM_EPS),
                    (draw(_ROWS, hidden).requires_grad_(learns), *vectors),
                )
            features = 4 * hidden // config.parallel.tensor
            _try(
                parts.bias_gelu,
                bias_gelu,
                (draw(_ROWS, features).requires_grad_(learns), nn.Parameter(draw(features))),
            )
    get_accelerator().synchronize()  # what a kernel does wrong shows here


def _see_that_torch_would() -> None:
    """Switched off, torch.compile gives back what it is given, and says nothing."""
    from torch._dynamo import config as dynamo

    if dynamo.disable or os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        raise RuntimeError("TORCH_COMPILE_DISABLE or TORCHDYNAMO_DISABLE is set, so that nothing is compiled")


class _Drawn:
    """Tensors of the run's precision and device, with normal values that are the same on all ranks."""

    def __init__(self, config: Config):
        self._dtype = TORCH_DTYPES[config.train.precision]
        self._device = torch.device(get_accelerator().current_device_name())
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        values = torch.randn(*shape, generator=self._generator)
        return values.to(self._device, self._dtype)


def _vectors(config: Config, draw: _Drawn) -> Iterator[tuple[Tensor, Tensor]]:
    """Weight and bias of a norm: as parameters, and as those of spread tokens are, another kind to a compiler."""
    weight, bias = (nn.Parameter(draw(config.model.hidden_size)) for _ in range(2))
    yield weight, bias
    if config.parallel.sequence:
        yield weight.view_as(weight), bias.view_as(bias)


def _try(compiled: Callable[..., Tensor], plain: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    """Run a part once, forward and, where gradients are on, backward.

    Raises:
        ArithmeticError: it gives something else than its formula does in fp64.
    """
    exact = [x.detach().double().requires_grad_() for x in inputs]
    bound = max(_LEAST_TOLERANCE, _TOLERANCE_STEPS * torch.finfo(inputs[0].dtype).eps)
    for found, wanted in zip(_results(compiled, inputs), _results(plain, exact), strict=True):
        error = float((found.double() - wanted).abs().max() / wanted.abs().max())
        if not error <= bound:  # what is no number is wrong
            raise ArithmeticError(f"a program gives other values than its formula, by {error:.1e} of the largest")


def _results(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The output, and the gradients of the inputs where they are asked for."""
    output = function(*inputs)
    if not output.requires_grad:
        return [output]
    # Of one sign, so that no sum over the rows is small against the rounding of its terms.
    upstream = torch.linspace(0.5, 1.5, output.numel(), device=output.device).view_as(output).to(output)
    return [output.detach(), *torch.autograd.grad(output, inputs, upstream)]

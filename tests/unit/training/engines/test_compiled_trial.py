"""A compiled part that does not compute its formula, or is not compiled at all, is found before there is a model."""

import pytest
import torch
from torch import nn

from megatron_glm.training.engines import compiled_trial
from megatron_glm.training.engines.compiled_parts import bias_gelu, layer_norm
from megatron_glm.training.engines.compiled_trial import try_parts
from tests.unit.training.engines.least_config import least_config


class PlainParts:
    """Parts that nothing has compiled, with an error to make; tells part, gradients and parameters of each call."""

    def __init__(self, *, norm=lambda y: y, gelu=lambda y: y):
        self._norm, self._gelu = norm, gelu
        self.calls = []

    def norm(self, x, weight, bias, shape, eps):
        assert x.requires_grad == torch.is_grad_enabled()
        self.calls.append(("norm", torch.is_grad_enabled(), isinstance(weight, nn.Parameter)))
        return self._norm(layer_norm(x, weight, bias, eps))

    def bias_gelu(self, x, bias):
        assert x.requires_grad == torch.is_grad_enabled()
        self.calls.append(("gelu", torch.is_grad_enabled(), isinstance(bias, nn.Parameter)))
        return self._gelu(bias_gelu(x, bias))


@pytest.fixture
def tried(monkeypatch, tmp_path):
    """Tries parts in a precision and layout; gives their calls."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def try_out(parts, *, precision="fp32", tensor=1, norms=True):
        monkeypatch.setattr(compiled_trial, "CompiledParts", lambda: parts)
        try_parts(config(precision, tensor), norms=norms)
        return parts.calls

    return try_out


def config(precision, tensor):
    return least_config(hidden_size=32, precision=precision, parallel={"tensor": tensor, "sequence": tensor > 1})


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_what_rounds_as_torch_does_passes_in_every_precision(tried, precision):
    assert tried(PlainParts(), precision=precision) == [
        ("norm", True, True),
        ("gelu", True, True),
        ("norm", False, True),
        ("gelu", False, True),
    ]


def test_with_spread_tokens_the_norms_are_tried_with_what_is_no_parameter_too(tried):
    calls = tried(PlainParts(), tensor=2)
    assert calls[:2] == [("norm", True, True), ("norm", True, False)]


def test_without_norms_only_the_gelu_is_tried(tried):
    assert {name for name, *_ in tried(PlainParts(), norms=False)} == {"gelu"}


class _HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, upstream):
        return upstream * 0.5


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    "wrong",
    [{"norm": lambda y: y * 1.2}, {"gelu": lambda y: y * float("nan")}, {"gelu": _HalfGradient.apply}],
    ids=["norm", "no number", "gradient"],
)
def test_a_program_that_computes_something_else_is_found(tried, precision, wrong):
    with pytest.raises(ArithmeticError, match="a program gives other values than its formula"):
        tried(PlainParts(**wrong), precision=precision)


def test_torch_compile_switched_off_is_no_success(tried, monkeypatch):
    with (
        torch._dynamo.config.patch(disable=True),
        pytest.raises(RuntimeError, match="TORCH_COMPILE_DISABLE or TORCHDYNAMO_DISABLE is set"),
    ):
        tried(PlainParts())
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(RuntimeError, match="TORCH_COMPILE_DISABLE or TORCHDYNAMO_DISABLE is set"):
        tried(PlainParts())


def test_a_compiler_that_is_missing_is_an_error_even_where_torch_is_told_to_go_on_without(
    compiled_programs, monkeypatch
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled_programs))
    torch.compiler.reset()
    with (
        torch._dynamo.config.patch(suppress_errors=True),
        torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler")}),
        pytest.raises(Exception, match="no-such-compiler"),
    ):
        try_parts(config("fp32", 1), norms=True)
    torch.compiler.reset()

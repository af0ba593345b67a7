"""Compiled norms and bias + GELU: the same numbers, once compiled for rows of every length."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from megatron_glm.config.schema import Model
from megatron_glm.model.glm import GLM
from megatron_glm.model.mlp import MLP
from megatron_glm.parallel.linear import ColumnParallelLinear, SpreadLayerNorm
from megatron_glm.training.engines import compiled_parts
from megatron_glm.training.engines.compiled_parts import CompiledParts, bias_gelu, compile_parts, layer_norm
from megatron_glm.training.engines.fused_mlp import FusedMLP, GELULinear
from megatron_glm.training.engines.fused_norm import FusedLayerNorm

H = 32  # as in tests/distributed/training/cases.py: its programs are the same
EPS = 1e-5
SIZES = Model(num_layers=2, hidden_size=8, num_attention_heads=2, max_positions=8)


@pytest.fixture
def parts(compiled_programs, monkeypatch):
    """Compiled parts of a process that has compiled nothing yet."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled_programs))
    torch.compiler.reset()
    yield CompiledParts()
    torch.compiler.reset()


@pytest.fixture
def not_compiled(monkeypatch):
    """What would be compiled runs as it is; gives the names of what ran."""
    ran = []

    def compile(function, *, fullgraph, options):
        assert fullgraph

        def run(*tensors):
            ran.append(function.__name__)
            return function(*tensors)

        return run

    monkeypatch.setattr(torch, "compile", compile)
    return ran


def tensors(T, width, dtype=torch.float32, *, vectors):
    """A row, weight and bias or a bias alone, and what comes back from above."""
    generator = torch.Generator().manual_seed(T)
    x, upstream = (torch.randn(T, width, generator=generator).to(dtype) for _ in range(2))
    parameters = [nn.Parameter(torch.randn(width, generator=generator).to(dtype)) for _ in range(vectors)]
    return [x.requires_grad_(), *parameters], upstream


def results(function, inputs, upstream):
    output = function(*inputs)
    return [output, *torch.autograd.grad(output, inputs, upstream)]


def worst(found, wanted):
    """The largest difference of any tensor, relative to its largest entry."""
    ratios = [
        float((a.detach().double() - b.detach().double()).abs().max() / b.detach().abs().max())
        for a, b in zip(found, wanted, strict=True)
    ]
    return max(ratios)


def of_both(parts):
    """For each part: the compiled one, the formula, the width of the row, and how many vectors it takes."""
    return [
        (lambda x, w, b: parts.norm(x, w, b, (H,), EPS), lambda x, w, b: layer_norm(x, w, b, EPS), H, 2),
        (parts.bias_gelu, bias_gelu, 4 * H, 1),
    ]


def number_compiled():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_each_is_compiled_once_for_rows_of_every_length_and_once_more_for_evaluation(parts):
    before = number_compiled()
    for compiled, plain, width, vectors in of_both(parts):
        # 4,096 rows are where Inductor would change its sums on a CPU, 2,047 and 5,120 where on a GPU.
        for T in (5, 1, 2, 3, 64, 257, 2047, 4096, 4097, 9000):
            inputs, upstream = tensors(T, width, vectors=vectors)
            # On a CPU it adds the rows of a column one by one: rounding grows with the root of their number.
            bound = 2e-6 * max(1.0, (T / 1024) ** 0.5)
            assert worst(results(compiled, inputs, upstream), results(plain, inputs, upstream)) <= bound, T
            row, upstream = tensors(T, width, vectors=vectors)
            with torch.no_grad():
                assert worst([compiled(*row)], [plain(*row)]) <= 2e-6, T
    assert number_compiled() - before == 4
    repeats = [results(*part[:1], *tensors(300, part[2], vectors=part[3])) for part in 2 * of_both(parts)]
    for first, again in zip(repeats[:2], repeats[2:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert number_compiled() - before == 4


def test_what_lies_in_the_cache_is_code_and_no_pickle(parts, compiled_programs):
    compiled, _, width, vectors = of_both(parts)[0]
    results(compiled, *tensors(7, width, vectors=vectors))
    kinds = {file.suffix for file in compiled_programs.rglob("*") if file.is_file()}
    assert ".so" in kinds
    assert kinds <= {".so", ".cpp", ".py", ".lock", ".h", ".gch"}


def test_no_helper_processes_would_be_started_for_a_gpu():
    from torch._inductor.async_compile import AsyncCompile

    with torch._inductor.config.patch(compile_threads=2), torch._inductor.config.patch(compiled_parts.OPTIONS):
        assert not AsyncCompile.use_process_pool()


@pytest.mark.slow
def test_in_bf16_the_error_is_at_most_twice_that_of_torch(parts):
    for compiled, plain, width, vectors in of_both(parts):
        for T in (1, 64, 1000):
            inputs, upstream = tensors(T, width, torch.bfloat16, vectors=vectors)
            exact = [x.detach().double().requires_grad_() for x in inputs]
            truth = results(plain, exact, upstream.double())
            found, eager = results(compiled, inputs, upstream), results(plain, inputs, upstream)
            for one, other, true in zip(found, eager, truth, strict=True):
                assert worst([one], [true]) <= 2 * worst([other], [true]), T


def test_a_row_without_tokens_is_left_to_torch(not_compiled):
    mlp = FusedMLP(MLP(8), CompiledParts().bias_gelu)
    norm = FusedLayerNorm(nn.LayerNorm(8), CompiledParts().norm)
    for module in (mlp, norm):
        module(torch.empty(0, 8)).sum().backward()
        assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in module.parameters())
    assert not_compiled == []


def test_every_norm_and_mlp_is_replaced_and_every_parameter_is_the_models_own(not_compiled):
    model = GLM(SIZES, num_ids=9, seed=1)
    before = dict(model.named_parameters())
    compile_parts(model)
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    kinds = [type(module) for module in model.modules()]
    assert (kinds.count(FusedLayerNorm), kinds.count(FusedMLP)) == (5, 2)
    assert not {nn.LayerNorm, MLP} & set(kinds)
    layer, x = model.transformer.layers[0], torch.randn(3, 8)
    plain = GLM(SIZES, num_ids=9, seed=1).transformer.layers[0]
    attend = lambda query, key, value: query  # noqa: E731
    torch.testing.assert_close(layer(x, attend), plain(x, attend), rtol=0, atol=1e-6)
    assert not_compiled == ["layer_norm", "layer_norm", "bias_gelu"]


def test_the_norms_of_apex_stay_those_of_apex(not_compiled):
    model = nn.ModuleDict({"norm": FusedLayerNorm(nn.LayerNorm(8), lambda x, *_: -x), "mlp": MLP(8)})
    norm = model["norm"]
    compile_parts(model)
    assert model["norm"] is norm
    assert isinstance(model["mlp"], FusedMLP)


def test_what_ranks_send_each_other_is_sent_as_before(not_compiled, monkeypatch):
    sent = []

    def sending(name):
        def send(x, group):
            sent.append(name)
            return x

        return send

    for name in ("gather_rows", "to_shards", "bundle_to_shards"):
        monkeypatch.setattr(f"megatron_glm.parallel.linear.{name}", sending(name))
    for spread, what in ((True, "gather_rows"), (False, "to_shards")):
        mlp = MLP(8)
        mlp.dense_h_to_4h = ColumnParallelLinear(8, 16, group=None, spread=spread)
        mlp.dense_4h_to_h = nn.Linear(16, 8)
        model = nn.ModuleDict({"norm": SpreadLayerNorm(8, eps=EPS, group=None), "mlp": mlp})
        plain, x = deepcopy(model), torch.randn(3, 8)
        compile_parts(model)
        sent.clear()
        torch.testing.assert_close(model["mlp"](model["norm"](x)), plain["mlp"](plain["norm"](x)), rtol=0, atol=1e-6)
        assert sent == 2 * ["bundle_to_shards", what]


def test_a_fused_linear_layer_is_the_gelu_of_the_layer():
    linear = nn.Linear(8, 16)
    fused, x = GELULinear(linear, bias_gelu), torch.randn(3, 8)
    torch.testing.assert_close(fused(x), F.gelu(linear(x), approximate="tanh"), rtol=0, atol=1e-6)


def test_every_option_is_one_that_this_torch_has():
    known = torch._inductor.list_options()
    assert [name for name in compiled_parts.OPTIONS if name not in known] == []

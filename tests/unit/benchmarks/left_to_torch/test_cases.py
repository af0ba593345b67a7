"""What a part has to move at least is the bytes of what goes in and comes out, counted on the tensors themselves."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from benchmarks.left_to_torch.cases import CASES, HEAD_DIM, TYPES, BiasGELU, SecondHalf, built
from benchmarks.left_to_torch.on_cpu import PARTS as CPU_PARTS
from benchmarks.left_to_torch.on_gpu import PARTS as GPU_PARTS
from benchmarks.left_to_torch.on_gpu import TYPES as GPU_TYPES
from benchmarks.left_to_torch.operators import bytes_of_operators
from megatron_glm.model.layer import Layer
from megatron_glm.model.mlp import MLP

T, H = 24, 2 * HEAD_DIM


def test_the_commands_offer_what_there_is():
    assert tuple(CASES) == GPU_PARTS
    assert set(CPU_PARTS) < set(CASES)
    assert set(GPU_TYPES) == set(TYPES)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("part", CPU_PARTS)
def test_the_least_is_every_tensor_in_and_out_once(part, kind):
    case = CASES[part]
    module = built(case, H, kind, "cpu")
    x = torch.randn(T, case.width * H).to(TYPES[kind]).requires_grad_()
    parameters = list(module.parameters())
    output = module(x)
    gradients = torch.autograd.grad(output, [x, *parameters], torch.ones_like(output))
    size = TYPES[kind].itemsize
    forward, backward = (size * numbers for numbers in case.least(T, H))
    assert forward == sum(y.nbytes for y in (x, *parameters, output))
    # Backward of either needs one of the vectors, the norm's weight or the bias of GELU.
    assert backward == sum(y.nbytes for y in (output, x, parameters[0], *gradients))


def test_the_second_half_is_that_of_the_models_layer():
    torch.manual_seed(1)
    layer, x = Layer(H, 2), torch.randn(T, H)
    nn.init.zeros_(layer.attention.dense.weight)
    nn.init.zeros_(layer.attention.dense.bias)
    assert_close(SecondHalf(layer)(x), layer(x, lambda query, key, value: query), rtol=0, atol=0)


def test_bias_and_gelu_are_those_of_the_models_mlp():
    torch.manual_seed(1)
    mlp, part, x = MLP(H), BiasGELU(H), torch.randn(T, H)
    part.bias = mlp.dense_h_to_4h.bias
    assert_close(mlp(x), mlp.dense_4h_to_h(part(x @ mlp.dense_h_to_4h.weight.T)), rtol=0, atol=1e-6)


def test_without_compiling_every_operator_reads_and_writes_its_own():
    part = built(CASES["bias + GELU"], H, "bf16", "meta")
    row, bias = 2 * T * 4 * H, 2 * 4 * H
    forward, backward = bytes_of_operators(part, torch.empty(T, 4 * H, dtype=torch.bfloat16, device="meta"))
    assert forward == (2 * row + bias) + 2 * row  # the sum, then GELU
    assert backward == 3 * row + (row + bias)  # that of GELU, then the sum over the tokens


def test_matrix_products_count_for_nothing():
    forward, backward = bytes_of_operators(nn.Linear(H, H, bias=False, device="meta"), torch.empty(T, H, device="meta"))
    assert forward == backward == 0

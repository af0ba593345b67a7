"""Initial values: by seed and name, with the original's variances."""

import math

import pytest
import torch

from megatron_glm.config.schema import Model
from megatron_glm.model.decay import decayed_names
from megatron_glm.model.glm import GLM
from megatron_glm.model.initialization import initial_value, initialize
from megatron_glm.model.sizes import parameter_shapes

CONFIG = Model(num_layers=2, hidden_size=64, num_attention_heads=4, max_positions=100)


@pytest.fixture(scope="module")
def model():
    return GLM(CONFIG, num_ids=500, seed=7)


def test_each_parameter_is_drawn_apart_from_the_others(model):
    for name, parameter in reversed(list(model.named_parameters())):
        assert torch.equal(parameter, initial_value(name, parameter.shape, CONFIG, 7))


def test_another_seed_gives_other_values(model):
    name = "word_embeddings.weight"
    shape = model.word_embeddings.weight.shape
    assert not torch.equal(model.word_embeddings.weight, initial_value(name, shape, CONFIG, 8))


def test_torchs_generator_is_neither_read_nor_moved(model):
    state = torch.get_rng_state()
    again = GLM(CONFIG, num_ids=500, seed=7)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_model_in_bf16_starts_from_the_same_values_rounded(model):
    half = GLM(CONFIG, num_ids=500, seed=None).to(torch.bfloat16)
    initialize(half, parameter_shapes(CONFIG, 500), CONFIG, 7)
    assert torch.equal(half.word_embeddings.weight, model.word_embeddings.weight.bfloat16())


def test_variances_are_those_of_the_original(model):
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            assert not parameter.any()
        elif "layernorm" in name:
            assert (parameter == 1).all()
        else:
            output = name.endswith(("attention.dense.weight", "dense_4h_to_h.weight"))
            std = 0.02 / math.sqrt(4) if output else 0.02
            assert parameter.std().item() == pytest.approx(std, rel=0.06)
            assert parameter.mean().item() == pytest.approx(0, abs=0.06 * std)


def test_initial_values_are_frozen():
    # Runs and parity tests of later versions start from these.
    values = initial_value("transformer.layers.0.attention.dense.weight", (4, 8), CONFIG, 1)
    assert values.flatten()[:3].tolist() == pytest.approx([-0.002879637, 0.013676465, 0.012652571], abs=1e-7)


def test_norms_and_biases_are_not_decayed(model):
    names = [name for name, _ in model.named_parameters()]
    matrices = {name for name, parameter in model.named_parameters() if parameter.ndim == 2}
    assert decayed_names(names) == matrices

"""The back end of attention that a run names is the one that its layers use."""

import pytest
import torch

from glm_kernels.attention import interval, op
from megatron_glm.config.schema import Train
from megatron_glm.model.glm import GLM
from tests.unit.model.test_glm import DRY, NUM_IDS, WET, forward, gradients

PACKED = [3, 11, 20]


@pytest.mark.parametrize("backend", ["triton", "sdpa", "reference"])
def test_every_back_end_gives_the_same_hidden_states(backend):
    expected = forward(GLM(DRY, num_ids=NUM_IDS, seed=1, attention_backend="segments"), PACKED)
    got = forward(GLM(DRY, num_ids=NUM_IDS, seed=1, attention_backend=backend), PACKED)
    for index in PACKED:
        torch.testing.assert_close(got[index], expected[index], rtol=0, atol=5e-6)


def test_with_dropout_the_kernels_have_the_gradients_of_the_formula():
    expected = gradients(GLM(WET, num_ids=NUM_IDS, seed=1, attention_backend="reference"))
    got = gradients(GLM(WET, num_ids=NUM_IDS, seed=1, attention_backend="triton"))
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("recompute", "launches"), [("none", 2), ("selective", 2), ("full", 4)])
def test_the_kernels_run_again_for_whole_layers_alone_and_give_the_same_bits(recompute, launches, monkeypatch):
    kept = gradients(GLM(WET, num_ids=NUM_IDS, seed=1, attention_backend="triton"))
    counted, launch = [], interval.interval_attention
    monkeypatch.setattr(interval, "interval_attention", lambda *args: counted.append(1) or launch(*args))
    again = gradients(GLM(WET, num_ids=NUM_IDS, seed=1, recompute=recompute, attention_backend="triton"))
    assert len(counted) == launches
    assert all(torch.equal(kept[name], again[name]) for name in kept)


def test_the_configuration_names_the_back_ends_that_there_are():
    assert Train.model_fields["attention_backend"].annotation == op.AttentionBackend
    assert Train.model_fields["attention_backend"].default == "auto"

"""The norms by NVIDIA's apex, where that is asked for and there: the same parameters, the same results."""

import sys
from functools import partial
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from megatron_glm.config.schema import Model, Train
from megatron_glm.errors import ConfigError
from megatron_glm.model.glm import GLM
from megatron_glm.parallel.linear import SpreadLayerNorm
from megatron_glm.training.engines import apex as apex_module
from megatron_glm.training.engines.fused_norm import FusedLayerNorm, fuse_norms

MODEL = Model(num_layers=2, hidden_size=8, num_attention_heads=2, max_positions=8)


@pytest.fixture
def apex(monkeypatch):
    """Says what of NVIDIA's apex and a GPU are there. Gives the shapes that its kernel was called with."""
    called = []

    def fused_layer_norm_affine(x, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
        assert len(x), "CUDA error: invalid configuration argument"  # as a grid of no blocks is
        called.append(tuple(x.shape))
        return F.layer_norm(x, normalized_shape, weight, bias, eps)

    def there(*, installed, gpu=True, built=True):
        kernels = ModuleType("apex.normalization.fused_layer_norm")
        kernels.fused_layer_norm_affine = fused_layer_norm_affine
        for name in ("apex", "apex.normalization"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
        monkeypatch.setattr(apex_module, "nvidia_apex", lambda: sys.modules["apex"] if installed else None)
        monkeypatch.setattr(apex_module, "find_spec", {"fused_layer_norm_cuda": built or None}.__getitem__)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        return called

    return there


def settings(fused_norm):
    return Train(output="-", steps=1, global_batch_size=1, micro_batch_size=1, fused_norm=fused_norm)


def norms(model):
    return [module for module in model.modules() if isinstance(module, nn.LayerNorm)]


@pytest.mark.parametrize("fused", ["apex", "auto"])
def test_apex_computes_every_norm_with_the_parameters_of_the_model(apex, fused):
    called = apex(installed=True)
    model = GLM(MODEL, num_ids=9, seed=1)
    before = dict(model.named_parameters())
    fuse_norms(model, settings(fused))
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    assert len(norms(model)) == 5
    assert all(isinstance(norm, FusedLayerNorm) for norm in norms(model))
    x, norm = torch.randn(3, 8), model.transformer.final_layernorm
    assert torch.equal(norm(x), F.layer_norm(x, (8,), norm.weight, norm.bias, 1e-5))
    assert called == [(3, 8)]


def test_the_gradients_of_spread_tokens_are_still_summed(apex, monkeypatch):
    apex(installed=True)
    norm = SpreadLayerNorm(8, eps=1e-5, group=None)
    monkeypatch.setattr(
        "megatron_glm.parallel.linear.bundle_to_shards", lambda values, group: tuple(2 * value for value in values)
    )
    model = nn.ModuleDict({"norm": norm})
    fuse_norms(model, settings("apex"))
    x = torch.randn(3, 8)
    assert torch.equal(model["norm"](x), F.layer_norm(x, (8,), 2 * norm.weight, 2 * norm.bias, 1e-5))


def test_a_micro_batch_without_targets_has_zero_gradients(apex):
    called = apex(installed=True)
    model = nn.ModuleDict({"norm": nn.LayerNorm(8)})
    fuse_norms(model, settings("apex"))
    norm = model["norm"]
    assert norm(torch.empty(0, 8)).shape == (0, 8)
    norm(torch.empty(0, 8)).sum().backward()
    assert torch.equal(norm.weight.grad, torch.zeros(8))
    assert called == []


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ({"installed": False}, "not installed"),
        ({"installed": True, "gpu": False}, "there is none"),
        ({"installed": True, "built": False}, "built without its CUDA extension fused_layer_norm_cuda"),
    ],
)
def test_auto_is_torch_s_elsewhere_and_apex_is_refused(apex, there, missing):
    apex(**there)
    model = GLM(MODEL, num_ids=9, seed=1)
    fuse_norms(model, settings("auto"))
    assert not any(isinstance(norm, FusedLayerNorm) for norm in norms(model))
    with pytest.raises(ConfigError, match=rf"train\.fused_norm: apex, but .*{missing}; use torch"):
        fuse_norms(model, settings("apex"))


def test_the_default_asks_for_no_apex(monkeypatch):
    monkeypatch.setattr(apex_module, "nvidia_apex", partial(pytest.fail, "asked"))
    fuse_norms(GLM(MODEL, num_ids=9, seed=1), settings("torch"))

"""AdamW with two groups, by torch or by NVIDIA's apex where that is asked for and there."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from megatron_glm.config.schema import Optimizer
from megatron_glm.errors import ConfigError
from megatron_glm.training.engines import apex as apex_module
from megatron_glm.training.engines.optimizer import build_optimizer

MODULE = nn.ModuleDict({"dense": nn.Linear(4, 4), "input_layernorm": nn.LayerNorm(4)})


class FusedAdam:
    """Stands in for apex's, with its arguments."""

    def __init__(
        self,
        params,
        lr=1e-3,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-8,
        adam_w_mode=True,
        weight_decay=0.0,
        amsgrad=False,
        set_grad_none=True,
        capturable=False,
        master_weights=False,
    ):
        assert (bias_correction, amsgrad, capturable, master_weights) == (True, False, False, False)
        self.groups, self.options = params, {"lr": lr, "betas": betas, "eps": eps, "adam_w_mode": adam_w_mode}


@pytest.fixture
def apex(monkeypatch):
    """Says what of NVIDIA's apex and a GPU are there."""

    def there(*, installed, gpu=True, built=True):
        parts = ModuleType("apex.optimizers")
        parts.FusedAdam = FusedAdam
        monkeypatch.setitem(sys.modules, "apex", SimpleNamespace(optimizers=parts))
        monkeypatch.setitem(sys.modules, "apex.optimizers", parts)
        monkeypatch.setattr(apex_module, "nvidia_apex", lambda: sys.modules["apex"] if installed else None)
        monkeypatch.setattr(apex_module, "find_spec", {"amp_C": built or None}.__getitem__)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)

    return there


def settings(fused):
    return Optimizer(learning_rate=0.5, beta2=0.95, fused=fused)


def test_norms_and_biases_are_not_decayed():
    groups = build_optimizer(MODULE, settings("torch"), zero_stage=1).param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.1), (3, 0.0)]


@pytest.mark.parametrize("fused", ["apex", "auto"])
def test_apex_is_taken_where_it_is_there(apex, fused):
    apex(installed=True)
    built = build_optimizer(MODULE, settings(fused), zero_stage=2)
    assert isinstance(built, FusedAdam)
    assert built.options == {"lr": 0.5, "betas": (0.9, 0.95), "eps": 1e-6, "adam_w_mode": True}
    assert [group["weight_decay"] for group in built.groups] == [0.1, 0.0]


def test_auto_is_torch_s_where_parameters_are_updated_part_by_part(apex):
    apex(installed=True)
    assert isinstance(build_optimizer(MODULE, settings("auto"), zero_stage=3), torch.optim.AdamW)


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ({"installed": False}, "not installed"),
        ({"installed": True, "gpu": False}, "there is none"),
        ({"installed": True, "built": False}, "built without its CUDA extension amp_C"),
    ],
)
def test_auto_is_torch_s_elsewhere_and_apex_is_refused(apex, there, missing):
    apex(**there)
    assert isinstance(build_optimizer(MODULE, settings("auto"), zero_stage=1), torch.optim.AdamW)
    with pytest.raises(ConfigError, match=rf"optimizer\.fused: apex, but .*{missing}; use torch"):
        build_optimizer(MODULE, settings("apex"), zero_stage=1)


def test_the_default_asks_for_no_apex(monkeypatch):
    monkeypatch.setattr(apex_module, "nvidia_apex", lambda: pytest.fail("asked"))
    assert isinstance(build_optimizer(MODULE, Optimizer(learning_rate=0.5), zero_stage=1), torch.optim.AdamW)

"""What DeepSpeed refuses is an error of our section for it, in one line; where that is empty, it is a defect."""

import deepspeed
import pytest
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config import DeepSpeedConfigError
from deepspeed.runtime.zero.utils import ZeRORuntimeException

from megatron_glm.config.loading import config_from_tree
from megatron_glm.errors import ConfigError
from megatron_glm.training.engines.deepspeed_start import start_deepspeed


def config(section, precision="fp32"):
    return config_from_tree(
        {
            "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "-"}]},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 1, "global_batch_size": 1, "micro_batch_size": 1, "precision": precision},
            "deepspeed": section,
        }
    )


@pytest.mark.parametrize("kind", [ValueError, AssertionError, KeyError, DeepSpeedConfigError, ZeRORuntimeException])
def test_a_section_that_deepspeed_refuses_is_named(monkeypatch, kind):
    def initialize(**_):
        raise kind("no such\nthing")

    monkeypatch.setattr(deepspeed, "initialize", initialize)
    with pytest.raises(ConfigError, match=r"^deepspeed: DeepSpeed refuses this section \(.*no such.*thing.*\)") as told:
        start_deepspeed(config({"elasticity": {"enabled": True}}))
    assert "\n" not in str(told.value)
    with pytest.raises(kind):
        start_deepspeed(config({}))


@pytest.mark.parametrize(("capability", "refused"), [((7, 5), True), ((8, 0), False), ((9, 0), False)])
def test_bf16_is_refused_by_gpus_that_do_not_multiply_in_it(monkeypatch, capability, refused):
    monkeypatch.setattr(get_accelerator(), "device_name", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(deepspeed, "initialize", lambda **_: ["the engine"])
    if refused:
        with pytest.raises(ConfigError, match=r"^train.precision: bf16 needs .* this one has 7.5; use fp16"):
            start_deepspeed(config({}, "bf16"))
    else:
        assert start_deepspeed(config({}, "bf16")) == "the engine"

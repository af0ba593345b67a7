"""The batches, the libraries and the disk that a run needs."""

import os
from types import SimpleNamespace

import pytest
import torch

from megatron_glm.config.loading import config_from_tree
from megatron_glm.doctor import configured
from megatron_glm.doctor.configured import check_apex, check_compilation, check_disk, check_layout
from megatron_glm.errors import ConfigError
from megatron_glm.parallel.ranks import SingleProcess


def config(*, train=None, optimizer=None):
    return config_from_tree(
        {
            "model": {"num_layers": 2, "hidden_size": 8, "num_attention_heads": 2},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "-"}]},
            "optimizer": {"learning_rate": 1e-3} | (optimizer or {}),
            "train": {"output": "-", "steps": 1, "global_batch_size": 16, "micro_batch_size": 2} | (train or {}),
        }
    )


@pytest.mark.parametrize(
    ("train", "status", "value"),
    [
        ({}, "ok", "16 samples = 2 × 4 × 2 replicas"),
        ({"batch_ramp": {"start": 4, "increment": 4, "samples": 9}}, "ok", "16 samples = 2 × 4 × 2 replicas"),
        ({"global_batch_size": 10}, "fail", "train.global_batch_size: 10 is not"),
        ({"batch_ramp": {"start": 2, "increment": 2, "samples": 9}}, "fail", "train.batch_ramp.start: 2 is not"),
        ({"batch_ramp": {"start": 4, "increment": 2, "samples": 9}}, "fail", "train.batch_ramp.increment: 2 is not"),
    ],
)
def test_every_batch_that_the_run_comes_to_must_divide(train, status, value):
    layout, batch = check_layout(config(train=train), 2)
    assert (layout.check, layout.status, batch.check, batch.status) == ("layout", "ok", "batch", status)
    assert batch.value.startswith(value)


@pytest.mark.parametrize(
    ("section", "setting", "field"),
    [("optimizer", {"fused": "apex"}, "optimizer.fused"), ("train", {"fused_norm": "apex"}, "train.fused_norm")],
)
def test_an_apex_that_is_wanted_must_be_there(monkeypatch, section, setting, field):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert list(check_apex(config())) == []
    with pytest.raises(ConfigError, match=f"{field}: apex, but apex runs on CUDA devices, and there is none"):
        list(check_apex(config(**{section: setting})))


@pytest.mark.parametrize(("gpu", "is_on", "status"), [(True, True, "ok"), (True, False, "warn"), (False, False, "ok")])
def test_a_compiler_that_does_not_work_where_it_may_is_a_warning(monkeypatch, gpu, is_on, status):
    settled = SimpleNamespace(is_on=is_on, told="what it found")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(configured, "settle_compilation", lambda config, ranks: settled)
    (finding,) = check_compilation(config(), SingleProcess())
    assert (finding.check, finding.status, finding.value) == ("torch.compile", status, "what it found")


def test_two_checkpoints_must_fit(tmp_path):
    output = tmp_path / "not" / "yet" / "there"
    assert check_disk(output, 1000).status == "ok"
    finding = check_disk(output, 10**18)
    assert finding.status == "fail"
    assert finding.value.endswith(f"free in {tmp_path}; 2 checkpoints are 24000000TB")
    assert not output.parent.exists()


def test_a_directory_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    finding = check_disk(tmp_path / "run", 1000)
    assert (finding.status, finding.value) == ("fail", f"{tmp_path} cannot be written")

"""Which implementation an operation runs on."""

import pytest
import torch

from glm_kernels.dispatch import runs_on_triton


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_kernels_run_on_a_gpu_and_torch_on_a_cpu(dtype, monkeypatch):
    x = torch.zeros(1, dtype=dtype)
    assert not runs_on_triton("auto", x)
    monkeypatch.setattr("glm_kernels.dispatch._on_a_gpu", lambda x: True)
    assert runs_on_triton("auto", x)
    monkeypatch.setattr("glm_kernels.dispatch._HAS_TRITON", False)
    assert not runs_on_triton("auto", x)


def test_a_choice_can_be_forced():
    x = torch.zeros(1)
    assert runs_on_triton("triton", x)
    assert not runs_on_triton("torch", x)


def test_a_type_that_the_kernels_do_not_know_is_left_to_torch_or_refused(monkeypatch):
    x = torch.zeros(1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"kernels know fp32, bf16 and fp16, not torch.float64; use the backend torch"):
        runs_on_triton("triton", x)
    monkeypatch.setattr("glm_kernels.dispatch._on_a_gpu", lambda x: True)
    assert not runs_on_triton("auto", x)


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="backend 'cuda' is none of auto, triton, torch"):
        runs_on_triton("cuda", torch.zeros(1))

"""The model with its kernels on a GPU: against the original code, and with the memory of recomputation."""

import pytest
import torch
from safetensors.torch import load_file

from tests.unit.model import test_golden_parity as parity


@pytest.fixture(scope="module")
def golden(shared, device):
    return {name: x.to(device) for name, x in load_file(shared("golden/glm_reference_tiny.safetensors")).items()}


@pytest.mark.golden
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_logits_and_gradients_are_those_of_the_original_code(golden, device, recompute):
    with torch.device(device):
        result = parity.run(golden, order=(2, 0, 1), padding=9, recompute=recompute)
    assert result.loss == pytest.approx(float(golden["out.loss"]), abs=1e-5)
    assert parity.logits_error(golden, result) < 2 * parity.LOGITS_BOUND
    assert parity.gradient_error(golden, result) < 5 * parity.GRADIENT_BOUND

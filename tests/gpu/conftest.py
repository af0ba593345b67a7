"""Where the tests of the kernels on a GPU run: on one, or rehearsed by a CPU at toy sizes (benchmarks/gpu_check.sh)."""

import os

import pytest
import torch


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def rehearsal():
    """Whether a CPU rehearses, with the kernels in Triton's interpreter."""
    return os.environ.get("GLM_GPU_REHEARSAL") == "1"


@pytest.fixture(scope="session")
def device(rehearsal):
    if rehearsal:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    if os.environ.get("TRITON_INTERPRET") != "0":
        pytest.skip("the kernels are in Triton's interpreter: run with TRITON_INTERPRET=0")
    return torch.device("cuda", 0)


@pytest.fixture(scope="session")
def repeats(rehearsal):
    """How often a result has to come out with the same bits."""
    return 2 if rehearsal else 20

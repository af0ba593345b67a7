"""The loss is exact: gradients, losses and norms equal those of one process under every partition.

Dropout is on, target counts differ by a factor of thirty between micro-batches, objectives are mixed
unevenly, and some samples are empty.
"""

from functools import cache

import numpy as np
import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases

pytestmark = pytest.mark.distributed

STEPS = 4


@pytest.fixture(scope="module")
def one_process():
    """For a loss normalisation, what one process without accumulation and without ZeRO computes."""
    return cache(lambda loss: run_ranks(1, cases.run_steps, cases.config(stage=0, micro=8, loss=loss), STEPS)[0])


def worst(result, reference):
    """The largest difference of any gradient, relative to the largest entry of its tensor."""
    assert result["gradients"].keys() == reference["gradients"].keys()
    return max(
        np.abs(result["gradients"][name] - wanted).max() / np.abs(wanted).max()
        for name, wanted in reference["gradients"].items()
    )


def check_equal(reference, processes, settings):
    for result in run_ranks(processes, cases.run_steps, settings, STEPS):
        assert worst(result, reference) < 5e-6
        assert result["loss"] == pytest.approx(reference["loss"], rel=1e-5)
        assert result["norm"] == pytest.approx(reference["norm"], rel=1e-5)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_mean_over_all_targets_is_exact_too(one_process, stage):
    check_equal(one_process("per_token"), 2, cases.config(stage=stage, micro=2, loss="per_token"))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bf16_follows_fp32_within_its_precision(one_process, stage):
    reference = one_process("per_objective")
    settings = cases.config(stage=stage, micro=2, precision="bf16")
    result = run_ranks(2, cases.run_steps, settings, STEPS)[0]
    assert worst(result, reference) < 0.05
    assert result["loss"] == pytest.approx(reference["loss"], rel=1e-3)
    assert result["norm"] == pytest.approx(reference["norm"], rel=2e-2)


def test_a_mean_of_means_would_be_seen():
    # The control: this is what the comparison above would have to notice.
    settings = cases.config(stage=0, micro=1)
    shares = [batch for rank in range(2) for batch in cases.batches(settings, step=0, rank=rank, size=2)]
    counts = [sum(batch.target_counts) for batch in shares]
    assert max(counts) > 20 * min(count for count in counts if count)
    assert 0 in counts

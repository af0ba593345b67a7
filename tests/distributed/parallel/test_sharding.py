"""A layer shared by several ranks is the layer: losses and gradients are those of one process."""

import numpy as np
import pytest
import torch

from megatron_glm.parallel.cuts import Shard
from tests.distributed.parallel import sharded_cases as cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_each_rank_has_the_gradients_of_its_part(size, spread, recompute):
    loss, gradients, sums = cases.whole()
    for rank, (found, parts, found_sums) in enumerate(run_ranks(size, cases.sharded, spread, recompute)):
        assert found == pytest.approx(loss, rel=1e-6)
        assert found_sums == pytest.approx(sums, rel=1e-6)
        assert parts.keys() == gradients.keys()
        for name, whole in gradients.items():
            part = Shard.of(name, rank=rank, size=size).take(torch.from_numpy(whole)).numpy()
            error = np.abs(parts[name] - part).max() / np.abs(whole).max()
            assert error < 5e-6, f"{name} on rank {rank}: {error:.1e}"

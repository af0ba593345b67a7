"""With the kernels too, a model shared by ranks has the losses and gradients of one process, dropout included."""

import numpy as np
import pytest
import torch

from megatron_glm.parallel.cuts import Shard
from tests.distributed.parallel import kernel_cases as cases
from tests.distributed.parallel import sharded_cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("spread", [False, True])
def test_each_rank_has_the_gradients_of_its_part(spread):
    loss, gradients, sums = cases.on_kernels(sharded_cases.whole)
    for rank, (found, parts, found_sums) in enumerate(run_ranks(2, cases.sharded, spread)):
        assert found == pytest.approx(loss, rel=1e-6)
        assert found_sums == pytest.approx(sums, rel=1e-6)
        assert parts.keys() == gradients.keys()
        for name, whole in gradients.items():
            part = Shard.of(name, rank=rank, size=2).take(torch.from_numpy(whole)).numpy()
            error = np.abs(parts[name] - part).max() / np.abs(whole).max()
            assert error < 5e-6, f"{name} on rank {rank}: {error:.1e}"


def test_the_kernels_drop_other_entries_than_a_cpu():
    # The control: were the kernels not asked, both losses would be one number.
    assert abs(cases.on_kernels(sharded_cases.whole)[0] - cases.small(sharded_cases.whole)[0]) > 1e-4

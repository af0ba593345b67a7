"""What the processes of a doctor's test run; rank 1 may be ill."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from megatron_glm.config.loading import load_config
from megatron_glm.doctor.examination import examine
from megatron_glm.doctor.job import check_clocks
from megatron_glm.training.processes import distributed_processes

Found = dict[str, tuple[str, str]]


def examined(config: str | None, overrides: tuple[str, ...] = (), ill: tuple[str, ...] = ()) -> Found:
    """Status and value by check; `ill` are further overrides of rank 1."""
    with distributed_processes(threads=None) as ranks:
        own = (*overrides, *ill) if ranks.rank == 1 else overrides
        return _by_check(examine(config and load_config(config, own), ranks))


def with_a_wrong_sum() -> Found:
    """The additions of rank 1 are off by one."""
    with distributed_processes(threads=None) as ranks, pytest.MonkeyPatch.context() as patch:
        all_reduce = dist.all_reduce

        def wrong(tensor, *args, **kwargs):
            all_reduce(tensor, *args, **kwargs)
            tensor += 1

        if ranks.rank == 1:
            patch.setattr(dist, "all_reduce", wrong)
        return _by_check(examine(None, ranks))


def with_a_clock_off_by(seconds: float) -> Found:
    """Rank 1's clock goes wrong."""
    with distributed_processes(threads=None) as ranks:
        offset = seconds if ranks.rank == 1 else 0.0
        return _by_check(check_clocks(ranks, lambda: time.time() + offset))


def _by_check(findings) -> Found:
    return {finding.check: (finding.status, finding.value) for finding in findings}

"""A loader whose workers are killed gives every step as it is, and the sweep would see it if not."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.loader_kills import digest, loader_kills
from megatron_glm.data.batch import Batch
from megatron_glm.data.flat_row import flat_row
from megatron_glm.data.loader import Step
from megatron_glm.objective.sample import Objective, Sample


def test_three_kills_change_no_batch(tmp_path):
    report = loader_kills(tmp_path, kills=3, seed=2)
    assert report.equal
    assert len(report.kills) == 3
    assert 1 <= len(report.replaced) <= 3
    assert {"step", "after", "age", "state"} == report.kills[0].keys()


@pytest.mark.parametrize("name", ["position_ids", "key_end", "token", "target_ids", "segments", "totals"])
def test_a_digest_changes_with_every_part_of_a_step(name):
    ids = np.arange(6, dtype=np.int32)
    sample = Sample(3, Objective.TOKEN, ids, ids, ids > 3, ids, ids, np.array([[0, 4, 6]], np.int32))
    row = flat_row([sample], pad_id=0)
    changed = getattr(row, name).copy()
    changed.flat[1] += 1
    steps = [Step.of(0, [Batch.of(r)], pin_memory=False) for r in (row, row, replace(row, **{name: changed}))]
    first, again, other = map(digest, steps)
    assert first == again != other

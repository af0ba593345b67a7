"""What training compiles for rows of every length is what is counted for rows of one."""

import pytest

from benchmarks.left_to_torch.any_length import EVERY, HIDDEN, ONE, TYPES
from benchmarks.left_to_torch.report import ARCHITECTURES, rows


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_programs_for_every_length_launch_the_kernels_of_those_for_one(arch):
    found = rows("any_length", ["--arch", arch])
    assert len(found) == 2 * len(HIDDEN) * len(TYPES)
    for row in found:
        assert row[EVERY] == row[ONE], row
        forward, backward = row[EVERY]
        assert len(forward) == 1
        assert 1 <= len(backward) <= 3

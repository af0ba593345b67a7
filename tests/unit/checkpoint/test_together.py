"""Ranks that act together hear whose fault a failure is, also of another rank's."""

import errno

import pytest

from megatron_glm.checkpoint.together import together
from megatron_glm.errors import CheckpointError, is_of_machine


class TwoRanks:
    """This rank, and another whose report is known."""

    rank, size = 0, 2

    def __init__(self, other):
        self._other = other

    def gather(self, value):
        return [value, self._other or value]


WELL = {"value": None, "error": None, "of_machine": False}
LOST = {"value": None, "error": "Input/output error", "of_machine": True}


def raised(error, *, other=WELL):
    def work():
        if error is not None:
            raise error

    with pytest.raises(CheckpointError) as failure:
        together(TwoRanks(other), "step 7 not saved", work)
    return failure.value


def test_all_do_their_part():
    assert together(TwoRanks(None), "step 7 not saved", lambda: "done") == ["done", "done"]


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "told"), RuntimeError("CUDA error: uncorrectable ECC error"), MemoryError()]
)
def test_a_disk_a_device_and_what_nobody_has_foreseen_may_pass(error):
    assert is_of_machine(raised(error))


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "told"), CheckpointError("not this model's")])
def test_a_full_disk_and_a_mistake_wait_for_a_person(error):
    assert not is_of_machine(raised(error))


def test_every_rank_hears_that_another_ranks_machine_has_failed():
    failure = raised(None, other=LOST)
    assert str(failure) == "step 7 not saved: rank 1: Input/output error"
    assert is_of_machine(failure)

"""Ranks that act together hear whose fault a failure is, also of another rank's."""

import errno

import pytest

from megatron_glm.errors import CheckpointError, ConfigError, DataError, RankError, is_of_machine
from megatron_glm.parallel.together import agreed, together, told_by_rank


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


def test_agreed_keeps_the_value_with_its_rank():
    value = object()
    assert agreed(TwoRanks(None), lambda: value) is value


def fails(error):
    raise error


@pytest.mark.parametrize("of_machine", [False, True])
def test_a_rank_that_agreed_to_work_raises_another_ranks_mistake_and_whose_fault_it_is(of_machine):
    with pytest.raises(RuntimeError, match="its own"):  # a defect is nothing to agree on
        agreed(TwoRanks(None), lambda: fails(RuntimeError("its own")))
    with pytest.raises(DataError, match="its own"):
        agreed(TwoRanks(["another's", of_machine]), lambda: fails(DataError("its own")))
    with pytest.raises(Exception, match="another's") as failure:
        agreed(TwoRanks(["another's", of_machine]), lambda: None)
    assert is_of_machine(failure.value) == of_machine


def test_a_rank_that_nobody_waits_for_tells_its_number_unless_all_raise_the_same():
    with pytest.raises(RankError, match=r"^rank 0: its own$"), told_by_rank(TwoRanks(None)):
        fails(ConfigError("its own"))
    with pytest.raises(ConfigError), told_by_rank(TwoRanks(None), unless=(ConfigError,)):
        fails(ConfigError("of all"))
    with pytest.raises(RankError, match=r"^rank 7: told$"), told_by_rank(TwoRanks(None)):
        fails(RankError("rank 7: told"))

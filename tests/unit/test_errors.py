"""Whose fault an error is: what waits for a person, and what a machine may do better when it is tried again."""

import errno

import pytest

from megatron_glm.errors import CheckpointError, ConfigError, DataError, RankError, UserError, is_of_machine


def caused_by(cause, *kinds):
    """The last of a chain of errors that a cause leads to."""
    for kind in kinds:
        try:
            raise kind("told") from cause
        except kind as error:
            cause = error
    return cause


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENODEV, errno.EUCLEAN])
def test_a_disk_or_server_that_fails_is_a_machine_through_any_chain_of_errors(number):
    cause = OSError(number, "told")
    assert is_of_machine(cause)
    assert is_of_machine(caused_by(cause, DataError))
    assert is_of_machine(caused_by(cause, CheckpointError, RankError))


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EISDIR])
def test_what_a_person_has_to_mend_is_no_machine(number):
    assert not is_of_machine(caused_by(OSError(number, "told"), DataError, RankError))


def test_an_error_may_say_itself_that_it_is_of_a_machine():
    assert is_of_machine(UserError("a bit has flipped", of_machine=True))
    assert is_of_machine(caused_by(DataError("no memory", of_machine=True), RankError))


@pytest.mark.parametrize("cause", [None, ValueError("no number"), ConfigError("unknown key")])
def test_any_other_mistake_is_a_users(cause):
    assert not is_of_machine(caused_by(cause, ConfigError))

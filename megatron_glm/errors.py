"""What a user is told when an input is wrong: one line, and an exit code that is not 0."""

from __future__ import annotations

import errno

# Of a disk, a file system's server or the network on the way to it; the same file is read or written well another time.
# A full disk, a missing file or missing rights are none: they wait for a person.
_OF_MACHINES = frozenset(
    {
        errno.EIO,
        errno.EREMOTEIO,
        errno.EBADMSG,
        errno.EUCLEAN,
        errno.ENODEV,
        errno.ENXIO,
        errno.ENOMEM,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENOLINK,
        errno.ESHUTDOWN,
    }
)


class UserError(Exception):
    """A mistake in what the user gave: its text is one line with field or file, value, what is allowed, what to do.

    Args:
        of_machine: a machine has failed, and no user: the same command may do better when it is started again.
    """

    def __init__(self, text: str, *, of_machine: bool = False):
        super().__init__(text)
        self.of_machine = of_machine


class ConfigError(UserError):
    """A configuration that cannot be run."""


class TokenizerError(UserError):
    """A tokenizer that cannot be loaded or does not fit the data."""


class DataError(UserError):
    """A corpus, shard or dataset that cannot be read."""


class CheckpointError(UserError):
    """A checkpoint or release that cannot be read or written."""


class RankError(UserError):
    """A failure of one process of a job: it is told whatever the process's rank."""


def is_of_machine(error: BaseException | None) -> bool:
    """Whether a machine's fault has led to an error: the error says so, or one of its chain of causes is one."""
    if error is None:
        return False
    if isinstance(error, OSError):
        return error.errno in _OF_MACHINES
    return (isinstance(error, UserError) and error.of_machine) or is_of_machine(error.__cause__)

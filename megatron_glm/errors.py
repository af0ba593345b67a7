"""What a user is told when an input is wrong: one line, and an exit code that is not 0."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in what the user gave: its text is one line with field or file, value, what is allowed, what to do."""


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

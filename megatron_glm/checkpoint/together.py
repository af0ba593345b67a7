"""All ranks do their part, and all succeed or all fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatron_glm.errors import CheckpointError, UserError
from megatron_glm.parallel.ranks import Ranks


def together(ranks: Ranks, what: str, work: Callable[[], Any], *, advice: str = "") -> list[Any]:
    """Do this rank's work, tell the others how it went, and go on only if all went well.

    Args:
        what: begins the message of the error, e.g. what is not saved now.
        work: returns what JSON can hold.
        advice: ends it.

    Returns what the work of each rank has returned, by rank.

    Raises:
        CheckpointError: on every rank, the same; names the ranks that failed and why.
    """
    value, failure = None, None
    try:
        value = work()
    except Exception as error:  # the others wait for a word from this rank, whatever went wrong
        failure = error
    reports = ranks.gather({"value": value, "error": failure and _reason(failure)})
    errors = [f"rank {rank}: {report['error']}" for rank, report in enumerate(reports) if report["error"] is not None]
    if errors:
        raise CheckpointError(f"{what}: {'; '.join(errors)}{advice}") from failure
    return [report["value"] for report in reports]


def _reason(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"

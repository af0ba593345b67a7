"""All ranks do their part, and all succeed or all fail; or one fails, and says so.

Three ways, by what the others do meanwhile: `together` where a failure of any kind must reach all, `agreed` where a
user's mistake must, `told_by_rank` where nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import NoneType
from typing import Any, TypeVar

from megatron_glm.errors import CheckpointError, RankError, UserError, is_of_machine
from megatron_glm.parallel.ranks import Ranks

T = TypeVar("T")


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
    value, failure = _tried(work, Exception)  # the others wait for a word from this rank, whatever went wrong
    # What nobody has foreseen is a defect or a device: no user's mistake, and it may pass.
    passes = is_of_machine(failure) or not isinstance(failure, (UserError, OSError, NoneType))
    reports = ranks.gather({"value": value, "error": failure and _reason(failure), "of_machine": passes})
    errors = [f"rank {rank}: {report['error']}" for rank, report in enumerate(reports) if report["error"] is not None]
    if errors:
        of_machine = any(report["of_machine"] for report in reports)
        raise CheckpointError(f"{what}: {'; '.join(errors)}{advice}", of_machine=of_machine) from failure
    return [report["value"] for report in reports]


def agreed(ranks: Ranks, work: Callable[[], T]) -> T:
    """Do this rank's work, and go on only if no rank met with a user's mistake; the value stays with its rank.

    Raises:
        UserError: on every rank: its own, or, where it had none, the words of the first rank that had one.
    """
    value, failure = _tried(work, UserError)
    failures = [told for told in ranks.gather(failure and [str(failure), is_of_machine(failure)]) if told]
    if failures:
        message, of_machine = failures[0]
        raise failure or UserError(message, of_machine=of_machine)
    return value


@contextmanager
def told_by_rank(ranks: Ranks, *, unless: tuple[type[UserError], ...] = ()) -> Iterator[None]:
    """For work after which ranks do not ask each other: one that fails tells it whatever its number.

    Args:
        unless: kinds that all ranks raise alike; they pass as they are.

    Raises:
        RankError: a user's error of the block, with the rank; the others notice its end.
    """
    try:
        yield
    except (RankError, *unless):
        raise
    except UserError as error:
        raise RankError(f"rank {ranks.rank}: {error}") from error


def _tried(work: Callable[[], T], kind: type[Exception]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except kind as error:
        return None, error


def _reason(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"

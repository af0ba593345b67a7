"""What a check has found, on one process or on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from megatron_glm.errors import UserError

Status = Literal["ok", "warn", "fail"]
_SEVERITY = {"ok": 0, "warn": 1, "fail": 2}


@dataclass(frozen=True)
class Finding:
    """One line of the doctor.

    Attributes:
        check: what was looked at.
        value: what was found.
        fix: what to do; empty where nothing is.
    """

    check: str
    status: Status
    value: str
    fix: str = ""


def findings_of(name: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of a check; one that breaks off is a finding too, so that the others are still made."""
    try:
        yield from check()
    except UserError as error:
        yield Finding(name, "fail", " ".join(str(error).split()))
    except Exception as error:  # whatever a sick machine makes of it
        yield Finding(name, "fail", f"{type(error).__name__}: {' '.join(str(error).split())}", "see the message")


def merged(by_rank: Sequence[Sequence[Finding]]) -> list[Finding]:
    """One finding for each check: the first of the worst, with the ranks that have it if not all do.

    Args:
        by_rank: the findings of each process, made by the same checks.
    """
    names = list(dict.fromkeys(finding.check for findings in by_rank for finding in findings))
    return [_merge(name, by_rank) for name in names]


def _merge(name: str, by_rank: Sequence[Sequence[Finding]]) -> Finding:
    found = {rank: f for rank, findings in enumerate(by_rank) for f in findings if f.check == name}
    worst = max(found.values(), key=lambda finding: _SEVERITY[finding.status])
    if worst.status == "ok":
        return worst
    ranks = [rank for rank, finding in found.items() if finding.status == worst.status]
    where = "" if len(ranks) == len(by_rank) else f"{ranks_text(ranks)}: "
    return Finding(name, worst.status, where + worst.value, worst.fix)


def ranks_text(ranks: Sequence[int]) -> str:
    """Ascending ranks in words: [0, 1, 2, 5] -> 'ranks 0-2, 5'."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(words)

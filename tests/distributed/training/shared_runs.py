"""Cases of one size share a set of processes: to start them costs more than to train a small model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest

from tests.distributed.training.matrix import Case

TOGETHER = 8  # DeepSpeed keeps groups of each layout, and every group has threads


def results_by_case(
    request: pytest.FixtureRequest, run: Callable[[int, Sequence[Case]], list[list[Any]]]
) -> Callable[[Case], list[Any]]:
    """For each case of this module that was asked for, what each rank found; run when first needed.

    Args:
        run: of a number of processes and some cases: for each rank, what it found in each case.
    """
    asked = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.path == request.path and "case" in getattr(getattr(item, "callspec", None), "params", {})
    ]

    def of_size(processes: int) -> list[Case]:
        return [case for case in asked if case.processes == processes]

    @cache
    def of(processes: int, start: int) -> list[list[Any]]:
        return run(processes, of_size(processes)[start : start + TOGETHER])

    def result(case: Case) -> list[Any]:
        place = of_size(case.processes).index(case)
        return [of_rank[place % TOGETHER] for of_rank in of(case.processes, place - place % TOGETHER)]

    return result

"""Every layout equals one process: the gradient of each parameter, losses and gradient norms over five updates.

In fp32 with dropout on, and batches whose target counts and objectives differ widely between micro-batches and ranks.
`make test` runs a selection that has every value of every axis; a slice of the rest changes with the commit.
"""

from functools import partial

import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.training import layouts
from tests.distributed.training.matrix import Case, covering_cases, possible_cases
from tests.distributed.training.shared_runs import results_by_case

pytestmark = pytest.mark.distributed

STEPS = 5
LAYERS = 3  # a first, a last and one between
ALL = possible_cases()
SELECTED = covering_cases(ALL)
SECONDS_A_CASE = 20


@pytest.fixture(scope="module")
def results(request):
    """Of a case, what each rank found."""

    def run(processes, together):
        configs = [case.config(LAYERS) for case in together]
        seconds = 60 + SECONDS_A_CASE * len(configs)
        return run_ranks(processes, layouts.in_turn, partial(layouts.steps, STEPS), configs, timeout=seconds)

    return results_by_case(request, run)


@pytest.fixture(scope="module")
def one_process():
    settings = Case(1, 1, 1, 1, 0, False, False).config(LAYERS)
    return run_ranks(1, layouts.in_turn, partial(layouts.steps, STEPS), [settings])[0][0]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in SELECTED else pytest.mark.slow, id=str(case)) for case in ALL]
)
def test_a_layout_is_one_process(results, one_process, case):
    found_names = set().union(*(result["gradients"] for result in results(case)))
    assert found_names == one_process["gradients"].keys()
    for rank, result in enumerate(results(case)):
        found = layouts.differences(result, one_process, case.config(LAYERS), processes=case.processes, rank=rank)
        assert found.is_equal, f"rank {rank}: {found}"


def test_the_selection_covers_what_all_layouts_do():
    assert set().union(*(case.covers() for case in SELECTED)) == set().union(*(case.covers() for case in ALL))
    assert len(SELECTED) < len(ALL) / 10

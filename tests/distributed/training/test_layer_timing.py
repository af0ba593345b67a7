"""What layers cost is measured by all ranks together, and all come to the same numbers."""

import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases, layer_timing_cases

pytestmark = pytest.mark.distributed

LAYERS = 5
FEW, MANY = cases.NUM_IDS, 400 * cases.NUM_IDS
LAYOUTS = [
    {"stage": 1, "micro": 2, "pipeline": 2},
    {"stage": 1, "micro": 2, "pipeline": 2, "tensor": 2, "sequence": True, "recompute": "full", "precision": "bf16"},
    {"stage": 0, "micro": 4, "pipeline": 4},
]


@pytest.fixture(scope="module")
def measured():
    """For each of LAYOUTS, of every rank of four, the costs with few words and with many."""
    settings = [cases.config(layers=LAYERS, **one) for one in LAYOUTS]
    by_rank = run_ranks(4, layer_timing_cases.costs, [(one, ids) for one in settings for ids in (FEW, MANY)])
    return [[(found[2 * n], found[2 * n + 1]) for found in by_rank] for n in range(len(LAYOUTS))]


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_all_ranks_have_the_same_positive_costs(measured, number):
    for costs in zip(*measured[number], strict=True):
        assert len(set(costs)) == 1
        assert len(costs[0]) == LAYERS
        assert min(costs[0]) > 0
        assert len(set(costs[0][1:-1])) == 1


@pytest.mark.parametrize("number", [0, 2])  # two of four ranks in turn on a busy machine are no clock
def test_the_output_layer_is_in_the_last_cost(measured, number):
    few, many = measured[number][0]
    assert many[-1] > 2 * max(few[-1], many[1])

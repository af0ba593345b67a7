"""In bf16 and fp16 the partition of a batch changes nothing either: gradients are summed and averaged in fp32.

One process and every layout run the same rows of one sample, so that all that could differ is how their gradients are
put together. By default DeepSpeed does so in bf16 or fp16, and is off by a thousand times the bounds here.
"""

from functools import partial

import pytest
from deepspeed.accelerator import get_accelerator

from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases, layouts
from tests.distributed.training.option_cases import with_options

pytestmark = pytest.mark.distributed

STEPS = 3
LAYOUTS = [
    {"zero_stage": 1},
    {"zero_stage": 2},
    {"zero_stage": 3},
    {"zero_stage": 1, "offload_optimizer": "cpu"},
    {"zero_stage": 2, "offload_optimizer": "cpu"},
    {"zero_stage": 3, "offload_optimizer": "cpu"},
]
# A scale at which next to no gradient is too small for fp16: those are rounded more coarsely.
TRAIN = {"bf16": {"precision": "bf16"}, "fp16": {"precision": "fp16", "loss_scale": {"initial_power": 15}}}


def settings(precision, parallel, expert=None):
    one = with_options(cases.config(stage=1, micro=1), train=TRAIN[precision], parallel=parallel)
    return one.model_copy(update={"deepspeed": one.deepspeed | (expert or {})})


def steps_of_all(configs):
    get_accelerator().is_fp16_supported = lambda: True  # a CPU computes in it, if slowly
    return layouts.in_turn(partial(layouts.steps, STEPS), configs)


@pytest.fixture(scope="module", params=["bf16", pytest.param("fp16", marks=pytest.mark.slow)])
def results(request):
    """Of one process, and of both ranks under each of LAYOUTS and under DeepSpeed's own defaults."""
    precision = request.param
    default = {"communication_data_type": precision, "data_types": {"grad_accum_dtype": precision}}
    configs = [settings(precision, one) for one in LAYOUTS] + [settings(precision, LAYOUTS[1], default)]
    return run_ranks(1, steps_of_all, configs[:1])[0][0], list(zip(*run_ranks(2, steps_of_all, configs), strict=True))


def differences(results, number):
    reference, by_layout = results
    of_ranks = by_layout[number]
    one = settings("bf16", {})
    return [layouts.differences(result, reference, one, processes=2, rank=r) for r, result in enumerate(of_ranks)]


@pytest.mark.parametrize("number", range(len(LAYOUTS)), ids=lambda number: str(LAYOUTS[number]))
def test_two_replicas_are_one_process(results, number):
    for found in differences(results, number):
        assert found.is_equal, found


def test_the_defaults_of_deepspeed_would_be_seen(results):
    # The control: what this comparison is for.
    for found in differences(results, -1):
        assert found.gradient > 100 * layouts.GRADIENT_BOUND

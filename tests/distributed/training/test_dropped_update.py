"""An update that is left out, in fp16 and with an offloaded optimizer too: what follows knows nothing of it.

It is dropped on purpose, with gradients as they should be or not, or left out as they are not finite.
"""

import math

import pytest
from deepspeed.accelerator import get_accelerator

from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases, layouts
from tests.distributed.training import option_cases as options

pytestmark = pytest.mark.distributed

FP16 = {"precision": "fp16", "loss_scale": {"initial_power": 8, "window": 2}}
BF16 = {"precision": "bf16"}
OFFLOADED = {"offload_optimizer": "cpu"}
QUICK = [
    ({"stage": 3}, FP16, {}),
    ({"stage": 2}, FP16, OFFLOADED),
    ({"stage": 1}, BF16, OFFLOADED),
]
OTHERS = [
    ({"stage": 1}, FP16, {}),
    ({"stage": 2}, FP16, {}),
    ({"stage": 1, "tensor": 2}, FP16, {}),
    ({"stage": 1, "pipeline": 2}, FP16, {}),
    ({"stage": 1}, {}, OFFLOADED),
    ({"stage": 2}, {}, OFFLOADED),
    ({"stage": 3}, {}, OFFLOADED),
    ({"stage": 1}, FP16, OFFLOADED),
    ({"stage": 3}, FP16, OFFLOADED),
    ({"stage": 2}, BF16, OFFLOADED),
    ({"stage": 3}, BF16, OFFLOADED),
    ({"stage": 2, "tensor": 2}, BF16, OFFLOADED),
]
WEIGHT = 1 / 50  # of a target
RATE = 1e-3
DISTURBED = "disturbed"


def make(settings, ranks):
    get_accelerator().is_fp16_supported = lambda: True  # a CPU computes in it, if slowly
    return cases.make_engine(settings, ranks)


class Run:
    """Steps of an engine by number, the numbers that a run leaves out included."""

    def __init__(self, settings, engine, groups):
        self.engine = engine
        self._settings, self._place, self._replicas = settings, groups.place.data, groups.layout.data

    def update(self, step, weight=WEIGHT):
        self._accumulate(step, weight)
        return self.engine.update(RATE)

    def drop(self, step, weight):
        """Whether the rank holds what it did, and takes it for no overflow."""
        before = self.held()
        self._accumulate(step, weight)
        self.engine.drop()
        return self.held() == before and not self.engine.loss_scale.overflowed

    def held(self):
        """The bits of all that a rank saves, Adam's counts, the loss scale and what it knows of its past."""
        inner = getattr(self.engine.optimizer, "optimizer", self.engine.optimizer)
        counts = [float(state["step"]) for state in inner.state.values()]
        values = [fragment.values.float().numpy().tobytes() for fragment in self.engine.fragments()]
        return values, counts, self.engine.loss_scale.state()

    def _accumulate(self, step, weight):
        share = cases.batches(self._settings, step=step, rank=self._place, size=self._replicas)
        is_last = self._place == self._replicas - 1
        self.engine.accumulate(share, [weight if is_last else WEIGHT] * 3)


def disturbed(settings, engine, groups):
    run = Run(settings, engine, groups)
    norms = [run.update(0)]
    alone = [run.drop(1, WEIGHT), run.drop(2, math.nan)]
    norms.append(run.update(3))
    alone.append(run.drop(4, math.inf))
    norms.append(run.update(5))
    held = run.held()
    left_out = run.update(6, math.nan)
    return norms, alone, held, left_out, run.update(7)


def undisturbed(settings, engine, groups):
    run = Run(settings, engine, groups)
    norms = [run.update(step) for step in (0, 3, 5)]
    return norms, run.held(), run.update(7)


def either(settings, engine, groups):
    return (disturbed if settings.train.output == DISTURBED else undisturbed)(settings, engine, groups)


@pytest.fixture(
    scope="module", params=[pytest.param(QUICK, id="quick"), pytest.param(OTHERS, id="others", marks=pytest.mark.slow)]
)
def results(request):
    """Of each layout: settings, then by rank what is found in both runs."""
    settings = [
        options.with_options(cases.config(micro=2, **layout), train=train | {"output": output}, parallel=parallel)
        for layout, train, parallel in request.param
        for output in (DISTURBED, "undisturbed")
    ]
    found = []
    for rank in run_ranks(2, layouts.in_turn, either, settings, make):
        found += zip(request.param, rank[::2], rank[1::2], strict=True)
    return found


def test_dropped_steps_change_nothing_and_what_follows_is_as_if_they_had_never_been(results):
    for layout, (norms, alone, held, *_), (norms_without, held_without, _) in results:
        assert alone == [True] * 3, layout
        assert norms == norms_without, layout
        assert held == held_without, layout


def test_gradients_that_are_not_finite_are_gone_with_their_step(results):
    for layout, (*_, left_out, norm), (*_, norm_without) in results:
        assert left_out is None or not math.isfinite(left_out), layout
        # In fp16 the loss scale is another now, and other gradients are rounded.
        assert norm == pytest.approx(norm_without, rel=0.02), layout

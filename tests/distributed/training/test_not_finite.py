"""A gradient that is not finite on one replica: no rank makes the update, all are told, under every layout.

So it is with an update that is dropped on purpose. What follows is as if the step had never been.
"""

import math

import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases, layouts

pytestmark = pytest.mark.distributed

LAYOUTS = [
    {"stage": 0, "micro": 4},
    {"stage": 1, "micro": 4},
    {"stage": 2, "micro": 4},
    {"stage": 3, "micro": 4},
    {"stage": 1, "micro": 4, "precision": "bf16"},
    {"stage": 2, "micro": 4, "precision": "bf16"},
    {"stage": 3, "micro": 4, "precision": "bf16"},
    {"stage": 0, "micro": 4, "tensor": 2},
    {"stage": 1, "micro": 4, "tensor": 2, "sequence": True, "precision": "bf16"},
    {"stage": 0, "micro": 4, "pipeline": 2},
    {"stage": 1, "micro": 4, "pipeline": 2},
    {"stage": 1, "micro": 4, "pipeline": 2, "precision": "bf16"},
]
MISHAPS = (math.inf, math.nan, "dropped")


def outcomes(settings, engine, groups):
    """The norm of a sound step, then of each mishap; and whether each of these left the rank's values alone."""

    def share(step):
        return cases.batches(settings, step=step, rank=groups.place.data, size=groups.layout.data)

    engine.accumulate(share(0), [1.0] * 3)
    norms, unchanged, after = [engine.update(1e-3)], [], []
    for mishap in (*MISHAPS, None):
        before = held(engine)
        is_last = groups.place.data == groups.layout.data - 1
        weight = mishap if is_last and isinstance(mishap, float) else 1.0
        engine.accumulate(share(1), [weight] * 3)
        norms.append(engine.drop() if mishap == "dropped" else engine.update(1e-3))
        unchanged.append(held(engine) == before)
        after.append(engine.loss_scale.overflowed)
    # What a run has that never met them.
    return norms, unchanged, after, held(engine)


def held(engine):
    """The bits of all that this rank saves and computes with, and Adam's counts."""
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    counts = [float(state["step"]) for state in inner.state.values()]
    # ZeRO-3 computes with partitions, and lets go of the small parameters that it had gathered.
    working = engine.working_fragments() if engine._engine.zero_optimization_stage() < 3 else ()
    return counts, [fragment.values.numpy().tobytes() for fragment in (*engine.fragments(), *working)]


def undisturbed(settings, engine, groups):
    for step in (0, 1):
        share = cases.batches(settings, step=step, rank=groups.place.data, size=groups.layout.data)
        engine.accumulate(share, [1.0] * 3)
        engine.update(1e-3)
    return held(engine)


@pytest.fixture(scope="module")
def results():
    """For each of LAYOUTS, what both ranks found."""
    settings = [cases.config(**one) for one in LAYOUTS]
    return list(zip(*run_ranks(2, layouts.in_turn, outcomes, settings), strict=True))


@pytest.fixture(scope="module")
def references():
    settings = [cases.config(**one) for one in LAYOUTS]
    return list(zip(*run_ranks(2, layouts.in_turn, undisturbed, settings), strict=True))


def each_layout(test):
    return pytest.mark.parametrize("number", range(len(LAYOUTS)), ids=lambda number: str(LAYOUTS[number]))(test)


@each_layout
def test_all_ranks_are_told_by_the_norm(results, number):
    for norms, *_ in results[number]:
        sound, infinite, not_a_number, dropped, again = norms
        assert math.isfinite(sound)
        assert infinite is not None
        assert not_a_number is not None
        assert not math.isfinite(infinite)
        assert not math.isfinite(not_a_number)
        assert dropped is None
        assert math.isfinite(again)


@each_layout
def test_no_rank_makes_the_update(results, number):
    for _, unchanged, *_ in results[number]:
        assert unchanged == [True, True, True, False]


@pytest.mark.slow
@each_layout
def test_what_follows_is_bit_for_bit_as_if_the_step_had_never_been(results, references, number):
    assert [rank[3] for rank in results[number]] == list(references[number])


@each_layout
def test_none_of_them_is_an_overflow_of_fp16(results, number):
    assert all(after == [False] * 4 for _, _, after, _ in results[number])

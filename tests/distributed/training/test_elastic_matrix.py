"""A run goes on under any layout from a checkpoint of any other: the same values, the same samples, the same losses.

`make test` runs a ring in which every layout is once what saved and once what goes on; the other pairs are slow.
"""

from functools import cache
from itertools import product
from pathlib import Path

import pytest

from megatron_glm.checkpoint.reading import CheckpointReader
from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases, elastic_cases, layouts
from tests.distributed.training.elastic_cases import FIRST_STEPS, LAYOUTS, NEXT_STEPS

pytestmark = pytest.mark.distributed

SIZES = sorted({case.processes for case in LAYOUTS.values()})
NAMES = list(LAYOUTS)
# Each step of the ring changes the layout, most of them the number of processes.
RING = [(NAMES[place], NAMES[(place + 3) % len(NAMES)]) for place in range(len(NAMES))]
TOGETHER = 8  # in one set of processes: DeepSpeed keeps groups of each layout, and every group has threads


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Of each layout, what each rank found in its uninterrupted run."""
    directory, found = tmp_path_factory.mktemp("whole"), {}
    for size in SIZES:
        names = [name for name in NAMES if LAYOUTS[name].processes == size]
        run = elastic_cases.Whole(directory, names)
        results = run_ranks(size, layouts.in_turn, run, [LAYOUTS[name].config() for name in names])
        found |= {name: [of_rank[place] for of_rank in results] for place, name in enumerate(names)}
    return found


@pytest.fixture(scope="module")
def moved(request, tmp_path_factory, whole):
    """Of a pair, what each rank found when the second layout went on where the first one was."""
    asked = [
        (item.callspec.params["source"], item.callspec.params["target"])
        for item in request.session.items
        if item.path == request.path and "target" in getattr(getattr(item, "callspec", None), "params", {})
    ]

    @cache
    def of(size, start):
        pairs = of_size(size)[start : start + TOGETHER]
        paths = {f"{source} to {target}": whole[source][0]["path"] for source, target in pairs}
        run = elastic_cases.Moved(tmp_path_factory.mktemp("moved"), paths)
        targets = [LAYOUTS[target].config() for _, target in pairs]
        return run_ranks(size, layouts.in_turn, run, targets, timeout=300)

    def of_size(size):
        return [pair for pair in asked if LAYOUTS[pair[1]].processes == size]

    def result(source, target):
        size = LAYOUTS[target].processes
        place = of_size(size).index((source, target))
        return [of_rank[place % TOGETHER] for of_rank in of(size, place - place % TOGETHER)]

    return result


def hashes(path):
    return CheckpointReader(Path(path)).parameter_hashes()


def samples(found):
    """Of each step, the samples of all ranks, each once: ranks of a replica share theirs."""
    return [sorted(set().union(*(of_rank["samples"][step] for of_rank in found))) for step in range(NEXT_STEPS)]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(*pair, marks=() if pair in RING else pytest.mark.slow, id=" to ".join(pair))
        for pair in product(NAMES, NAMES)
    ],
)
def test_a_run_goes_on_under_any_layout_as_if_it_had_never_moved(whole, moved, source, target):
    before, after = whole[source], moved(source, target)
    assert hashes(after[0]["path"]) == hashes(before[0]["path"])  # weights and moments, bit for bit
    for of_rank in after:
        assert of_rank["loss"] == pytest.approx(before[0]["loss"], rel=1e-5)
        assert of_rank["decay"] == before[0]["decay"] == [0.1, 0.0]
    assert samples(after) == samples(before)


def test_the_samples_are_those_of_the_order_each_once_a_step(whole):
    for found in whole.values():
        for step, seen in enumerate(samples(found), start=FIRST_STEPS):
            batch = range(step * cases.GLOBAL_BATCH, (step + 1) * cases.GLOBAL_BATCH)
            assert seen == [index for index in batch if len(cases.sample(index).input_ids)]


def test_the_ring_has_every_layout_on_both_sides():
    assert sorted(source for source, _ in RING) == sorted(target for _, target in RING) == sorted(NAMES)

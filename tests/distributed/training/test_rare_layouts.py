"""Rare layouts and batches equal one process too: what the matrix does not have, and a run may."""

from functools import cache

import numpy as np
import pytest

from megatron_glm.data.loader import step_indices
from megatron_glm.parallel.layout import Layout
from tests.distributed.ranks import run_ranks
from tests.distributed.training import layouts
from tests.distributed.training.rare_cases import Rare, all_in_turn, row

pytestmark = pytest.mark.distributed

STEPS = 5
TOGETHER = 8
SIX_HEADS = {"model": {"hidden_size": 48, "num_attention_heads": 6}}
# 300 words in 512 rows: the last of four ranks has none of them.
NO_WORDS = {"model": {"vocab_size": 512}, "train": {"label_smoothing": 0.1}}
RAMP = {"train": {"batch_ramp": {"start": 2, "increment": 2, "samples": 12}}}
SMOOTH = {"train": {"label_smoothing": 0.1}}
UNCLIPPED = {"optimizer": {"gradient_clipping": 0.0}}
SELECTIVE = {"recompute": "selective"}
PARTS = {"zero_optimization": {"sub_group_size": 3000, "stage3_param_persistence_threshold": 100}}
SPREAD = {"tensor": 2, "sequence": True}


def layout(**parallel):
    return {"parallel": parallel}


QUICK = [Rare("a replica without targets", 2, layout(zero_stage=3), empty="a replica")]
RARE = [
    *QUICK,
    Rare("spread, a replica without targets", 4, layout(**SPREAD, zero_stage=3), empty="a replica"),
    Rare("stages, a replica without targets", 4, layout(pipeline=2, zero_stage=1), empty="a replica"),
    Rare("rows that 3 ranks divide", 3, layout(tensor=3, sequence=True, zero_stage=1), common=SIX_HEADS),
    Rare("a rank without words", 4, layout(tensor=4, zero_stage=3), common=NO_WORDS),
    Rare(
        "a rank without words, spread and offloaded",
        4,
        {**layout(tensor=4, sequence=True, zero_stage=2, offload_optimizer="cpu"), "train": SELECTIVE},
        common=NO_WORDS,
    ),
    Rare(
        "spread stages, selective, smoothed",
        4,
        {**layout(**SPREAD, pipeline=2, zero_stage=1), "train": SELECTIVE},
        common=SMOOTH,
    ),
    Rare("spread stages, a ramp", 4, layout(**SPREAD, pipeline=2, zero_stage=0), common=RAMP),
    Rare("stages and replicas, a ramp", 4, layout(pipeline=2, zero_stage=1), micro=1, common=RAMP),
    # As a model of more than a billion parameters a rank has them.
    Rare("parameters in several parts", 2, {**layout(zero_stage=3), "deepspeed": PARTS}),
    Rare("three stages, a ramp", 3, layout(pipeline=3, zero_stage=1), common=RAMP),
    *(
        Rare(
            f"spread replicas, a ramp, offloaded, ZeRO {stage}",
            4,
            layout(**SPREAD, zero_stage=stage, offload_optimizer="cpu"),
            micro=1,
            common=RAMP,
        )
        for stage in (1, 2, 3)
    ),
    *(
        Rare(f"4 replicas, one without targets, ZeRO {stage}", 4, layout(zero_stage=stage), empty="a replica")
        for stage in range(4)
    ),
    *(
        Rare(f"a step without targets, ZeRO {stage}", 4, layout(tensor=2, zero_stage=stage), micro=1, empty="a step")
        for stage in range(4)
    ),
    *(
        Rare(f"stages, a step without targets, ZeRO {stage}", 4, layout(pipeline=2, zero_stage=stage), empty="a step")
        for stage in range(2)
    ),
    *(Rare(f"unclipped, ZeRO {stage}", 4, layout(tensor=2, zero_stage=stage), common=UNCLIPPED) for stage in range(4)),
    *(
        Rare(f"stages, unclipped, ZeRO {stage}", 4, layout(pipeline=2, zero_stage=stage), common=UNCLIPPED)
        for stage in range(2)
    ),
]


@pytest.fixture(scope="module")
def results(request):
    """Of a layout, what one process found, and what each of its ranks did."""
    asked = [
        item.callspec.params["rare"]
        for item in request.session.items
        if item.path == request.path and "rare" in getattr(getattr(item, "callspec", None), "params", {})
    ]

    def alike(rare):
        return [one for one in asked if (one.processes, one.empty) == (rare.processes, rare.empty)]

    @cache
    def run(name, start):
        some = alike(next(one for one in asked if one.name == name))[start : start + TOGETHER]
        alone = run_ranks(1, all_in_turn, some, STEPS, True)[0]
        return alone, run_ranks(some[0].processes, all_in_turn, some, STEPS, False, timeout=60 + 20 * len(some))

    def result(rare):
        group = alike(rare)
        place = group.index(rare)
        alone, ranks = run(group[0].name, place - place % TOGETHER)
        return alone[place % TOGETHER], [of_rank[place % TOGETHER] for of_rank in ranks]

    return result


@pytest.mark.parametrize(
    "rare", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow, id=one.name) for one in RARE]
)
def test_a_rare_layout_is_one_process(results, rare):
    alone, ranks = results(rare)
    for rank, result in enumerate(ranks):
        settings = rare.config(alone=False)
        found = layouts.differences(result, alone, settings, processes=rare.processes, rank=rank)
        assert found.gradient < layouts.GRADIENT_BOUND, f"rank {rank}: {found}"
        for name in ("loss", "norm", "evaluated"):
            assert np.array(result[name]) == pytest.approx(np.array(alone[name]), rel=layouts.LOSS_BOUND), (
                f"rank {rank}"
            )


BF16 = {"train": {"precision": "bf16"}}
LOW = [
    Rare("stages", 4, layout(pipeline=2, zero_stage=1), micro=1, common=BF16),
    *(
        Rare(f"tensor ranks, ZeRO {stage}", 4, layout(tensor=2, zero_stage=stage), micro=1, common=BF16)
        for stage in (1, 2, 3)
    ),
    Rare("spread", 4, layout(**SPREAD, zero_stage=2, offload_optimizer="cpu"), micro=1, common=BF16),
]


@pytest.mark.slow
def test_in_bf16_two_replicas_of_several_ranks_are_one():
    """Whatever rounding the ranks of a replica bring with them, the gradients are summed over replicas in fp32."""
    one, two = (run_ranks(size, all_in_turn, LOW, STEPS, False, timeout=180.0) for size in (2, 4))
    for number, rare in enumerate(LOW):
        parallel = rare.config(alone=False).parallel
        place = Layout.of(4, tensor=parallel.tensor, pipeline=parallel.pipeline).coordinates
        for rank, of_rank in enumerate(two):
            found, wanted = of_rank[number], one[place(rank).tensor + place(rank).pipeline][number]
            for name, gradient in wanted["gradients"].items():
                error = layouts.of_largest(found["gradients"][name] - gradient, gradient)
                assert error < layouts.GRADIENT_BOUND, f"{rare.name}, rank {rank}, {name}: {error:.1e}"
            for name in ("loss", "norm"):
                assert found[name] == pytest.approx(wanted[name], rel=layouts.LOSS_BOUND), f"{rare.name}, rank {rank}"


@pytest.mark.parametrize("replicas", [2, 4])
def test_a_replica_or_a_step_has_no_targets(replicas):
    """The control: without these there would be targets everywhere."""
    settings = QUICK[0].config(alone=False)

    def targets(step, replica, empty):
        indices = step_indices(8 * step, 8, replica, replicas, 2)
        return sum(len(row(settings, own, empty).target_ids) for own in indices)

    for step in range(STEPS):
        by_replica = [targets(step, replica, "a replica") for replica in range(replicas)]
        assert by_replica[0] > 0 == by_replica[1]
        assert (sum(targets(step, replica, "a step") for replica in range(replicas)) == 0) == (step == 1)
        assert min(targets(step, replica, "none") for replica in range(replicas)) > 0

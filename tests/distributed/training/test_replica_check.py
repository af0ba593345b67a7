"""Ranks that hold the same values are compared by their bits: they stay alike, and one that does not is named."""

from functools import partial

import pytest
import torch

from megatron_glm.parallel.ranks import DistributedRanks
from megatron_glm.training.engines.replica_check import ReplicaError, check_replicas, content_hash
from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases, layouts

pytestmark = pytest.mark.distributed

STEPS = 50


def trained_and_checked(steps, settings, engine, groups):
    """How many copies were compared after so many steps."""
    for step in range(steps):
        cases.one_step(settings, engine, groups, step)
    copies = list(engine.copies())
    check_replicas(copies, step=steps, groups=groups, ranks=DistributedRanks())
    return len(copies)


@pytest.mark.parametrize(
    "layouts_of_four",
    [
        [("fp32", 0, {"tensor": 2}), ("bf16", 1, {"tensor": 2}), ("fp32", 3, {"tensor": 2})],
        pytest.param(
            [("fp32", 1, {"tensor": 2}), ("fp32", 2, {"tensor": 2}), ("fp32", 1, {"pipeline": 2})],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [("bf16", 2, {"tensor": 2}), ("bf16", 3, {"tensor": 2}), ("bf16", 1, {"pipeline": 2})],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["some", "more in fp32", "more in bf16"],
)
def test_replicas_are_equal_to_the_bit_after_fifty_steps(layouts_of_four):
    settings = [
        cases.config(stage=stage, micro=4, precision=precision, sequence="tensor" in axes, **axes)
        for precision, stage, axes in layouts_of_four
    ]
    compared = run_ranks(4, layouts.in_turn, partial(trained_and_checked, STEPS), settings, timeout=300)
    assert all(number > 0 for of_rank in compared for number in of_rank)


# A layout of four ranks, the parameter and the rank that has one bit of it wrong, and what must be told.
FLIPS = [
    ({"tensor": 2}, "transformer.final_layernorm.weight", 1, "(weight) is not the same on ranks 0, 2, 3 as on rank 1;"),
    ({"tensor": 4}, "transformer.final_layernorm.weight", 1, "(weight) is not the same on ranks 0, 2, 3 as on rank 1;"),
    (
        {"tensor": 2, "stage": 1, "precision": "bf16"},
        "transformer.layers.0.attention.query_key_value.weight",
        3,
        "(weight, shard 1 of 2) is not the same on rank 1 as on rank 3;",
    ),
    (
        {"tensor": 2, "stage": 3},
        "transformer.layers.1.mlp.dense_4h_to_h.bias",
        2,
        "(fp32 weight, elements 16 to 31) is not the same on rank 2 as on rank 3;",
    ),
    (
        {"pipeline": 2, "stage": 1},
        "word_embeddings.weight",
        2,
        "(weight) is not the same on ranks 0, 1, 3 as on rank 2;",
    ),
    (
        {"tensor": 2},
        "transformer.layers.0.mlp.dense_h_to_4h.weight:exp_avg_sq",
        2,
        "(fp32 exp_avg_sq, shard 0 of 2, elements 0 to",
    ),
    ({"pipeline": 4, "stage": 0, "layers": 4}, "word_embeddings.weight", 3, "is not the same on rank 0 as on rank 3;"),
]


def flipped(parameter, rank, engine, groups):
    """What the check says on this rank when one bit of a parameter is another on one of them."""
    ranks = DistributedRanks()
    check_replicas(engine.copies(), step=0, groups=groups, ranks=ranks)
    if ranks.rank == rank:
        name, _, part = parameter.partition(":")
        copy = next(copy for copy in engine.copies() if copy.parameter == name and part in copy.part)
        copy.values.detach().flatten()[3:4].view(torch.uint8)[0] ^= 1
    try:
        check_replicas(engine.copies(), step=0, groups=groups, ranks=ranks)
    except ReplicaError as error:
        return str(error)


def all_flips():
    flips = iter(FLIPS)

    def next_flip(settings, engine, groups):
        _, parameter, rank, _ = next(flips)
        return flipped(parameter, rank, engine, groups)

    return layouts.in_turn(next_flip, [cases.config(**{"stage": 0, "micro": 4} | changes) for changes, *_ in FLIPS])


@pytest.fixture(scope="module")
def told():
    """For each of FLIPS, what each rank said."""
    return list(zip(*run_ranks(4, all_flips), strict=True))


@pytest.mark.parametrize("number", range(len(FLIPS)))
def test_one_flipped_bit_is_told_by_all_ranks_in_one_line(told, number):
    _, parameter, _, where = FLIPS[number]
    (message,) = set(told[number])
    assert message.startswith(f"step 0: parameter {parameter.partition(':')[0]} ")
    assert where in message
    assert "\n" not in message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_hash_is_of_the_bits(dtype):
    values = torch.zeros(3, dtype=dtype)
    assert content_hash(values) == content_hash(values.clone())
    assert content_hash(values) != content_hash(-values)

"""Six deliberate bugs, each patched into the shipped code: the comparison with one process must see every one.

`pytest -s` prints by how much each fails.
"""

from functools import partial
from unittest.mock import patch

import pytest
import torch.distributed as dist

from megatron_glm.parallel.loss import parallel_linear_cross_entropy
from megatron_glm.training.engines.exact_loss import Counts
from megatron_glm.training.engines.loss_module import WeightedLoss
from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases, layouts

pytestmark = pytest.mark.distributed

MARGIN = 100  # a bug must exceed the bound of its comparison by this factor


def mean_of_means(counts, numbers, device, group, *, copies):
    """Every replica divides by its own targets, and the replicas' means are averaged."""
    size = dist.get_world_size(group)
    return Counts(tuple(number * size for number in counts.targets), counts.tokens, counts.yielded), list(numbers)


def no_reduction(values, group):
    """Parameters used on a share of the tokens keep the gradient of that share."""
    return values


def no_tie(module):
    """Each end of the pipeline updates its word table by its own gradient."""
    return []


def all_are_shards(model, groups):
    """Every rank of a tensor group counts the parameters that all of them have."""
    for parameter in model.parameters():
        parameter.model_parallel = True


def loss_seeded_by_rank(glm, *, dropout_seed, **options):
    """Each rank drops something else for the same sample."""
    return WeightedLoss(glm, dropout_seed=dropout_seed + dist.get_rank(), **options)


def padding_in_the_softmax(hidden, weight, target_ids, *, num_valid, group, **options):
    """The rows that pad the word table compete with its words."""
    rows = weight.shape[0] * dist.get_world_size(group)
    return parallel_linear_cross_entropy(hidden, weight, target_ids, num_valid=rows, group=group, **options)


# The bug, what it replaces, the layout it is in, and the comparison that must see it.
MUTATIONS = {
    "mean of means": (
        mean_of_means,
        "megatron_glm.training.engines.exact_loss.Counts.with_totals",
        {"stage": 1, "micro": 2},
        "gradient",
    ),
    "missing reduction under sequence parallelism": (
        no_reduction,
        "megatron_glm.parallel.linear.bundle_to_shards",
        {"stage": 1, "micro": 4, "tensor": 2, "sequence": True},
        "gradient",
    ),
    "tied gradient not summed": (
        no_tie,
        "megatron_glm.training.engines.pipeline_module.StagePipeline.get_tied_weights_and_groups",
        {"stage": 0, "micro": 4, "pipeline": 2},
        "gradient",
    ),
    "replicated parameters counted twice in the norm, ours": (
        all_are_shards,
        "megatron_glm.training.engines.zero_engine.mark_shards",
        {"stage": 0, "micro": 4, "tensor": 2},
        "norm",
    ),
    "replicated parameters counted twice in the norm, DeepSpeed's": (
        all_are_shards,
        "megatron_glm.training.engines.zero_engine.mark_shards",
        {"stage": 1, "micro": 4, "tensor": 2},
        "norm",
    ),
    "dropout seeded by rank": (
        loss_seeded_by_rank,
        "megatron_glm.training.engines.zero_engine.WeightedLoss",
        {"stage": 1, "micro": 2},
        "gradient",
    ),
    "vocabulary padding in the softmax": (
        padding_in_the_softmax,
        "megatron_glm.parallel.placement.parallel_linear_cross_entropy",
        {"stage": 0, "micro": 4, "tensor": 2},
        "loss",
    ),
}


def without_and_with_bugs():
    """Each layout twice; while the second is in use, its bug is in the code."""
    for bug, target, changes, _ in MUTATIONS.values():
        settings = cases.config(**changes)
        yield settings
        with patch(target, bug):
            yield settings


def two_steps_each():
    return layouts.in_turn(partial(layouts.steps, 2), without_and_with_bugs())


def worst(results, reference, changes, comparison):
    """By how much the worst rank is off in a comparison."""
    settings = cases.config(**changes)
    of_ranks = (
        layouts.differences(result, reference, settings, processes=2, rank=rank) for rank, result in enumerate(results)
    )
    return max(getattr(one, comparison) for one in of_ranks)


@pytest.fixture(scope="module")
def figures():
    """For each bug, how far from one process the layout is without it and with it."""
    reference = run_ranks(1, cases.run_steps, cases.config(stage=0, micro=8), 2)[0]
    turns = zip(*run_ranks(2, two_steps_each), strict=True)  # the results of both ranks, turn by turn
    return {
        name: tuple(worst(next(turns), reference, changes, comparison) for _ in ("without", "with"))
        for name, (_, _, changes, comparison) in MUTATIONS.items()
    }


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_deliberate_bug_is_seen(figures, name):
    comparison = MUTATIONS[name][-1]
    bound = layouts.GRADIENT_BOUND if comparison == "gradient" else layouts.LOSS_BOUND
    sound, sick = figures[name]
    print(f"\n{name}: {comparison} is off by {sick:.1e}, without the bug by {sound:.1e}; bound {bound:.0e}")
    assert sound < bound
    assert sick > MARGIN * bound

"""The original code's gradients from its weights, by every kind of parallelism."""

from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from megatron_glm.config.schema import Model
from megatron_glm.data.batch import collate
from megatron_glm.objective.sample import Objective, Sample
from megatron_glm.parallel.cuts import Shard
from megatron_glm.parallel.groups import make_groups
from megatron_glm.parallel.layout import Layout
from megatron_glm.training.exact_loss import Counts, sums_over_replicas
from megatron_glm.training.model_building import build_model
from megatron_glm.training.objective_weights import combine, objective_weights
from megatron_glm.training.pipeline_engine import PipelineEngine
from megatron_glm.training.zero_engine import ZeroEngine
from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases, layouts

pytestmark = [pytest.mark.distributed, pytest.mark.golden]

GRADIENT_BOUND = 2e-6  # of the largest entry of the tensor, as in one process
MODEL = Model(
    num_layers=3,
    hidden_size=64,
    num_attention_heads=4,
    max_positions=48,
    vocab_size=160,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
# The three samples twice, so that their mean is that of the three: by replica, by micro-batch.
SHARES = {1: [[[0, 1], [2, 0, 1, 2]]], 2: [[[0, 1], [2]], [[1], [2, 0]]]}

LAYOUTS = [
    (2, {"stage": 0}),
    (2, {"stage": 3}),
    (2, {"stage": 0, "tensor": 2}),
    (2, {"stage": 1, "tensor": 2, "sequence": True, "recompute": "full"}),
    (2, {"stage": 0, "pipeline": 2}),
    (4, {"stage": 2, "tensor": 2, "sequence": True}),
    (4, {"stage": 0, "tensor": 4}),
    (4, {"stage": 1, "pipeline": 2, "tensor": 2, "sequence": True}),
    (4, {"stage": 1, "pipeline": 2}),
]


def settings(changes):
    """Of two micro-batches a replica."""
    return cases.config(micro=2, loss="per_token", **changes).model_copy(update={"model": MODEL})


def engine_of_the_original(path, one, ranks):
    """This rank's part of the original's weights in an engine."""
    parallel = one.parallel
    groups = make_groups(Layout.of(ranks.size, tensor=parallel.tensor, pipeline=parallel.pipeline))
    model, golden = build_model(one, MODEL.vocab_size, groups), load_file(path)
    for name, parameter in model.named_parameters():
        shard = Shard.of(name, rank=groups.place.tensor, size=parallel.tensor)
        parameter.data.copy_(shard.take(golden[f"param.{name}"]))
    kind = PipelineEngine if parallel.pipeline > 1 else ZeroEngine
    return kind(one, model, groups=groups, accumulation=2), groups


def sample(golden, number):
    length = int(golden["in.lengths"][number])

    def values(name, dtype, *place):
        return golden[f"in.{name}"][(number, *place)][:length].numpy().astype(dtype)

    return Sample(
        index=number,
        objective=Objective.TOKEN,
        input_ids=values("input_ids", np.int32),
        targets=values("targets", np.int32),
        loss_mask=values("loss_mask", bool),
        position_ids=values("position_ids", np.int32, 0),
        block_position_ids=values("position_ids", np.int32, 1),
        segments=np.array([[0, int(golden["in.sep"][number]), length]], np.int32),
    )


def loss_and_gradients(path, one, engine, groups):
    golden = load_file(path)
    rows = SHARES[groups.layout.data][groups.place.data]
    capacity = 192 if groups.layout.pipeline > 1 else None
    batches = [collate([sample(golden, number) for number in row], capacity=capacity, pad_id=0) for row in rows]
    counts = Counts.of(batches).over_replicas(engine.device, groups.data)
    weights = objective_weights(counts.targets, (1.0, 0.0, 0.0), "per_token")
    sums = sums_over_replicas(engine.accumulate(batches, weights), groups.data)
    return combine(sums, weights), {name: gradient.clone().numpy() for name, gradient in engine.gradients()}


@pytest.fixture(scope="module")
def results(shared):
    """For each layout of LAYOUTS, what its ranks found."""
    path = str(shared("golden/glm_reference_tiny.safetensors"))
    found = {}
    for processes in (2, 4):
        numbers = [number for number, (size, _) in enumerate(LAYOUTS) if size == processes]
        ranks = run_ranks(
            processes,
            layouts.in_turn,
            partial(loss_and_gradients, path),
            [settings(LAYOUTS[number][1]) for number in numbers],
            partial(engine_of_the_original, path),
        )
        found |= {number: [of_rank[turn] for of_rank in ranks] for turn, number in enumerate(numbers)}
    return found


def name_of(number):
    processes, changes = LAYOUTS[number]
    return f"{processes}-" + "-".join(f"{key}={value}" for key, value in changes.items())


@pytest.mark.parametrize("number", range(len(LAYOUTS)), ids=name_of)
def test_every_gradient_is_that_of_the_original(shared, results, number):
    golden = load_file(shared("golden/glm_reference_tiny.safetensors"))
    processes, changes = LAYOUTS[number]
    parallel = settings(changes).parallel
    layout = Layout.of(processes, tensor=parallel.tensor, pipeline=parallel.pipeline)
    seen = set()
    for rank, (loss, gradients) in enumerate(results[number]):
        assert loss == pytest.approx(golden["out.loss"].item(), abs=1e-6)
        for name, gradient in gradients.items():
            whole = golden[f"grad.{name}"]
            wanted = Shard.of(name, rank=layout.coordinates(rank).tensor, size=parallel.tensor).take(whole)
            error = (torch.as_tensor(gradient) - wanted).abs().max() / whole.abs().max()
            assert error <= GRADIENT_BOUND, f"{name} on rank {rank}: {error:.1e}"
        seen |= gradients.keys()
    assert seen == {name.removeprefix("grad.") for name in golden if name.startswith("grad.")}

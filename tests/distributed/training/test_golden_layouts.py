"""The original code's gradients from its weights, under every layout of test_matrix.py.

Its three samples are repeated, so that replicas and micro-batches have different ones, and different numbers of them.
"""

from functools import partial
from itertools import pairwise

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
from megatron_glm.planning.stages import pipeline_stages
from megatron_glm.training.engines.exact_loss import Counts, sums_over_replicas
from megatron_glm.training.engines.model_building import build_model
from megatron_glm.training.engines.pipeline_engine import PipelineEngine
from megatron_glm.training.engines.zero_engine import ZeroEngine
from megatron_glm.training.objective_weights import combine, objective_weights
from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases, layouts
from tests.distributed.training.matrix import covering_cases, possible_cases
from tests.distributed.training.shared_runs import results_by_case

pytestmark = [pytest.mark.distributed, pytest.mark.golden]

SECONDS_A_CASE = 20
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
SAMPLES = [0] * 4 + [1] * 4 + [2] * 4  # each as often: their mean is that of the three
LONGEST = 40  # tokens of a sample
ALL = possible_cases()
SELECTED = covering_cases(ALL)


def settings(case):
    return case.config(MODEL.num_layers).model_copy(update={"model": MODEL})


def shares(micro):
    """The samples of each micro-batch of a step, all replicas together: every second one has more."""
    number = cases.GLOBAL_BATCH // micro
    earlier = int(len(SAMPLES) % number == 0)  # else they differ in any case
    ends = [len(SAMPLES) * k // number - earlier * (k % 2) for k in range(number + 1)]
    return [SAMPLES[start:end] for start, end in pairwise([*ends[:-1], len(SAMPLES)])]


def engine_of_the_original(path, one, ranks):
    """This rank's part of the original's weights in an engine."""
    parallel = one.parallel
    groups = make_groups(Layout.of(ranks.size, tensor=parallel.tensor, pipeline=parallel.pipeline))
    model = build_model(one, MODEL.vocab_size, groups, pipeline_stages(one, MODEL.vocab_size))
    golden = load_file(path)
    for name, parameter in model.named_parameters():
        shard = Shard.of(name, rank=groups.place.tensor, size=parallel.tensor)
        parameter.data.copy_(shard.take(golden[f"param.{name}"]))
    kind = PipelineEngine if parallel.pipeline > 1 else ZeroEngine
    accumulation = cases.GLOBAL_BATCH // one.train.micro_batch_size // groups.layout.data
    return kind(one, model, groups=groups, accumulation=accumulation), groups


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
    """Of a step of the original's samples."""
    golden, layout = load_file(path), groups.layout
    rows = shares(one.train.micro_batch_size)
    capacity = -(-max(map(len, rows)) * LONGEST // 64) * 64 if layout.pipeline > 1 else None
    own = rows[groups.place.data :: layout.data]
    batches = [collate([sample(golden, number) for number in row], capacity=capacity, pad_id=0) for row in own]
    counts = Counts.of(batches).over_replicas(engine.device, groups.data)
    weights = objective_weights(counts.targets, (1.0, 0.0, 0.0), "per_token")
    sums = sums_over_replicas(engine.accumulate(batches, weights), groups.data)
    return combine(sums, weights), {name: gradient.clone().numpy() for name, gradient in engine.gradients()}


@pytest.fixture(scope="module")
def results(request, shared):
    """Of a case, what each rank found."""
    path = str(shared("golden/glm_reference_tiny.safetensors"))

    def run(processes, together):
        return run_ranks(
            processes,
            layouts.in_turn,
            partial(loss_and_gradients, path),
            [settings(case) for case in together],
            partial(engine_of_the_original, path),
            timeout=60 + SECONDS_A_CASE * len(together),
        )

    return results_by_case(request, run)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in SELECTED else pytest.mark.slow, id=str(case)) for case in ALL]
)
def test_every_gradient_is_that_of_the_original(shared, results, case):
    golden = load_file(shared("golden/glm_reference_tiny.safetensors"))
    layout = Layout(case.data, case.pipeline, case.tensor)
    seen = set()
    for rank, (loss, gradients) in enumerate(results(case)):
        assert loss == pytest.approx(golden["out.loss"].item(), abs=1e-6)
        for name, gradient in gradients.items():
            whole = golden[f"grad.{name}"]
            wanted = Shard.of(name, rank=layout.coordinates(rank).tensor, size=case.tensor).take(whole)
            error = (torch.as_tensor(gradient) - wanted).abs().max() / whole.abs().max()
            assert error <= GRADIENT_BOUND, f"{name} on rank {rank}: {error:.1e}"
        seen |= gradients.keys()
    assert seen == {name.removeprefix("grad.") for name in golden if name.startswith("grad.")}


def test_micro_batches_differ_in_samples_and_their_number():
    for case in ALL:
        rows = shares(cases.GLOBAL_BATCH // case.data // case.accumulation)
        assert [number for row in rows for number in row] == SAMPLES
        assert len(rows) == case.data * case.accumulation
        assert len(rows) == 1 or len(set(map(len, rows))) > 1
        assert all(rows)

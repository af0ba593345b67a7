"""What a step sends is what the plan says: the number and the bytes of every collective, by kind and group."""

from collections import Counter

import pytest
from deepspeed.accelerator import get_accelerator

from megatron_glm.parallel.layout import Layout
from megatron_glm.planning.communication import RowSize, step_messages
from megatron_glm.planning.messages import axis_sizes
from megatron_glm.planning.stages import pipeline_stages
from tests.distributed.ranks import run_ranks
from tests.distributed.recorder import Recorder
from tests.distributed.training import cases, layouts
from tests.distributed.training.option_cases import with_options

pytestmark = pytest.mark.distributed

LAYERS = 3  # a first, a last and one between
TWO = [
    {"stage": 0, "micro": 8, "tensor": 2},
    {"stage": 0, "micro": 4, "tensor": 2, "sequence": True},
    {"stage": 1, "micro": 4, "tensor": 2, "recompute": "full"},
    {"stage": 3, "micro": 4, "tensor": 2, "sequence": True, "recompute": "full"},
    {"stage": 0, "micro": 4, "tensor": 2, "sequence": True, "recompute": "selective"},
    {"stage": 0, "micro": 2},
    {"stage": 1, "micro": 2},
    {"stage": 2, "micro": 2},
    {"stage": 3, "micro": 2},
    {"stage": 1, "micro": 2, "precision": "bf16"},
    {"stage": 2, "micro": 2, "precision": "bf16"},
    {"stage": 0, "micro": 2, "pipeline": 2},
    {"stage": 1, "micro": 2, "pipeline": 2, "precision": "bf16"},
]
FOUR = [
    {"stage": 0, "micro": 2, "tensor": 2},
    {"stage": 1, "micro": 2, "tensor": 2, "sequence": True, "precision": "bf16"},
    {"stage": 2, "micro": 2, "tensor": 2, "sequence": True},
    {"stage": 3, "micro": 2, "tensor": 2, "recompute": "full"},
    {"stage": 1, "micro": 4, "tensor": 4, "sequence": True},
    {"stage": 1, "micro": 2, "pipeline": 2},
    {"stage": 0, "micro": 4, "pipeline": 2, "tensor": 2},
    {"stage": 1, "micro": 4, "pipeline": 2, "tensor": 2, "sequence": True},
    {"stage": 0, "micro": 4, "pipeline": 2, "tensor": 2, "sequence": True, "recompute": "full"},
]


def second_step(settings, engine, groups):
    """The collectives of a step after the first, and the sizes of its micro-batches."""
    cases.one_step(settings, engine, groups, 0)  # in the first one DeepSpeed tells and records shapes
    with Recorder(groups) as recorder:
        cases.one_step(settings, engine, groups, 1)
    rows = cases.batches(settings, step=1, rank=groups.place.data, size=groups.layout.data)
    return recorder.found, [(len(batch.input_ids), len(batch.target_ids)) for batch in rows]


def planned(settings, layout, rank, rows):
    """What the plan says of a rank: the exact messages, and the bytes of those that DeepSpeed divides."""
    stage = layout.coordinates(rank).pipeline
    exact, divided = Counter(), Counter()
    for message in step_messages(
        settings,
        layout,
        num_ids=cases.NUM_IDS,
        stage=stage,
        layers=pipeline_stages(settings, cases.NUM_IDS)[stage],
        rows=[RowSize(*row) for row in rows],
    ):
        assert axis_sizes(layout)[message.axis] > 1
        if message.is_divided:
            divided[message.kind, message.axis] += message.size * message.number
        else:
            exact[message.kind, axis_name(message.axis, layout), message.size] += message.number
    return exact, divided


def axis_name(axis, layout):
    """The recorder's name of a group: that of the axis alone where the others have one rank."""
    if axis == "world" and 1 in (layout.data, layout.tensor * layout.pipeline):
        return "data" if layout.data > 1 else axis_name("model", layout)
    if axis == "model" and 1 in (layout.tensor, layout.pipeline):
        return "tensor" if layout.pipeline == 1 else "pipeline"
    return axis


def shown(settings):
    return {**settings.parallel.model_dump(), "recompute": settings.train.recompute, "in": settings.train.precision}


def all_second_steps(settings):
    get_accelerator().is_fp16_supported = lambda: True  # a CPU computes in it, if slowly
    return layouts.in_turn(second_step, settings)


def check(processes, settings):
    results = run_ranks(processes, all_second_steps, settings)
    for number, one in enumerate(settings):
        layout = Layout.of(processes, tensor=one.parallel.tensor, pipeline=one.parallel.pipeline)
        for rank in range(processes):
            found, rows = results[rank][number]
            exact, divided = planned(one, layout, rank, rows)
            assert exact - found == Counter(), f"{shown(one)}, rank {rank}: planned but not sent"
            rest = Counter()
            for (kind, axis, size), times in (found - exact).items():
                rest[kind, axis] += size * times
            assert rest == divided, f"{shown(one)}, rank {rank}: bytes sent beside the exact messages"


@pytest.mark.parametrize(("processes", "changes"), [(2, TWO), (4, FOUR)], ids=["two ranks", "four ranks"])
def test_a_step_sends_what_the_plan_says(processes, changes):
    check(processes, [cases.config(layers=LAYERS, **one) for one in changes])


FP16 = {"precision": "fp16", "loss_scale": {"initial_power": 4}}
OPTIONS = {
    2: [({"stage": stage}, {"train": FP16}) for stage in (1, 2, 3)]
    + [({"stage": stage}, {"parallel": {"offload_optimizer": "cpu"}}) for stage in (1, 2, 3)],
    4: [({"stage": stage, "tensor": 2}, {"train": FP16}) for stage in (1, 2, 3)]
    + [({"stage": 1, "pipeline": 2}, {"train": FP16})]
    + [({"stage": stage, "tensor": 2, "precision": "bf16"}, {}) for stage in (2, 3)]
    + [({"stage": 3, "tensor": 2}, {"parallel": {"offload_optimizer": "cpu"}})],
}


@pytest.mark.parametrize("processes", OPTIONS, ids=["two ranks", "four ranks"])
def test_so_it_does_in_low_precision_and_with_an_offloaded_optimizer(processes):
    settings = [
        with_options(cases.config(layers=LAYERS, micro=2, **changes), **options)
        for changes, options in OPTIONS[processes]
    ]
    check(processes, settings)


def test_gradients_between_replicas_are_as_long_as_an_expert_wants_them():
    settings = [cases.config(layers=LAYERS, stage=stage, micro=2, precision="bf16") for stage in (1, 2, 3)]
    shorter = {"communication_data_type": "bf16"}
    check(2, [one.model_copy(update={"deepspeed": one.deepspeed | shorter}) for one in settings])


def test_a_model_too_large_to_be_kept_is_gathered_for_the_backward_pass_too():
    settings = cases.config(layers=LAYERS, stage=3, micro=2)
    zero = settings.deepspeed["zero_optimization"] | {"stage3_max_reuse_distance": 0, "stage3_max_live_parameters": 0}
    check(2, [settings.model_copy(update={"deepspeed": {"zero_optimization": zero}})])

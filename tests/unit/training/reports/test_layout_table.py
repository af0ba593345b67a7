"""What the banner shows of a layout."""

import pytest
from deepspeed.runtime.pipe.schedule import BackwardPass, ForwardPass

from megatron_glm.parallel.layout import Layout
from megatron_glm.training.engines.pipeline_schedule import GradientSchedule
from megatron_glm.training.reports.layout_table import layout_table, pipeline_picture


def test_the_table_says_which_rank_has_which_layers_heads_and_words():
    table = layout_table(
        Layout(data=3, pipeline=2, tensor=2),
        stages=[range(0, 3), range(3, 4)],
        heads=4,
        words=384,
        parameters=[12345, 678],
    )
    assert table.splitlines() == [
        "rank  stage  layers  heads    words  parameters",
        "   0      0     0–2    0–1    0–191      12,345",
        "   1      0     0–2    2–3  192–383      12,345",
        "   6      1       3    0–1    0–191         678",
        "   7      1       3    2–3  192–383         678",
        "replica k of 3: these ranks + 2 k; micro-batches k, k + 3, …",
    ]


def test_the_picture_is_the_order_of_one_forward_one_backward():
    assert pipeline_picture(4, 6).splitlines() == [
        "stage 0  0123...a4b5c.d.e.f",
        "stage 1  .012..a3b4c5d.e.f.",
        "stage 2  ..01.a2b3c4d5e.f..",
        "stage 3  ...0a1b2c3d4e5f...",
        "6 micro-batches: 33% of a step is idle",
    ]


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 7), (3, 2), (4, 9), (6, 3)])
def test_the_idle_share_is_that_of_the_picture(stages, micro_batches):
    *lines, note = pipeline_picture(stages, micro_batches).splitlines()
    drawn = "".join(line.split()[2] for line in lines)
    assert f"{drawn.count('.') / len(drawn):.0%} of a step is idle" in note
    for line in lines:
        row = line.split()[2]
        assert sorted(row.replace(".", "")) == sorted(
            [str(m) for m in range(micro_batches)] + [chr(ord("a") + m) for m in range(micro_batches)]
        )


def test_many_micro_batches_are_not_all_drawn_but_counted():
    note = pipeline_picture(2, 64).splitlines()[-1]
    assert note == "64 micro-batches: 2% of a step is idle; drawn with 10"


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 7), (3, 2), (4, 9), (6, 3)])
def test_the_picture_has_the_order_of_the_schedule_that_deepspeed_runs(stages, micro_batches):
    lines = pipeline_picture(stages, micro_batches).splitlines()[:-1]
    for stage, line in enumerate(lines):
        instructions = [one for step in GradientSchedule(micro_batches, stages, stage) for one in step]
        order = [type(one) for one in instructions if isinstance(one, (ForwardPass, BackwardPass))]
        drawn = line.split()[2].replace(".", "")
        assert [ForwardPass if mark.isdigit() else BackwardPass for mark in drawn] == order

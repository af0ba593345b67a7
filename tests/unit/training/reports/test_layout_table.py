"""What the banner shows of a layout."""

import pytest

from megatron_glm.config.schema import Model
from megatron_glm.model.sizes import parameter_count, parameter_shapes
from megatron_glm.parallel.layout import Layout
from megatron_glm.training.reports.layout_table import layout_table, pipeline_picture, rank_parameters

MODEL = Model(num_layers=4, hidden_size=32, num_attention_heads=4, max_positions=64)
SHAPES = parameter_shapes(MODEL, 300)


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


def test_the_parameters_of_one_rank_are_all():
    assert rank_parameters(SHAPES, Layout(), [range(4)]) == [parameter_count(MODEL, 300)]


def test_stages_have_all_parameters_and_the_word_table_twice():
    whole = parameter_count(MODEL, 300)
    words = SHAPES["word_embeddings.weight"][0] * 32
    assert sum(rank_parameters(SHAPES, Layout(pipeline=2), [range(0, 1), range(1, 4)])) == whole + words

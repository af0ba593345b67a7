"""The rows of a pipeline: as long as the largest micro-batch of any phase, and no longer than its multiple asks."""

import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.training.engines.engine import row_capacity


def config(*, parallel, micro=3, phases=()):
    return config_from_tree(
        {
            "model": {"num_layers": 4, "hidden_size": 12, "num_attention_heads": 3, "max_positions": 512},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "-"}], "window": 100, "phases": list(phases)},
            "objective": {"max_spans": 20},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 1, "global_batch_size": 3, "micro_batch_size": micro},
            "parallel": parallel,
        }
    )


def test_without_a_pipeline_rows_are_as_long_as_they_need_be():
    assert row_capacity(config(parallel={})) is None


@pytest.mark.parametrize(
    ("parallel", "phases", "capacity"),
    [
        ({"pipeline": 2}, [], 448),  # 3 × 140 = 420
        ({"pipeline": 2, "tensor": 3}, [], 576),
        ({"pipeline": 2}, [{"from_sample": 9, "window": 260}], 960),  # 3 × 300
        ({"pipeline": 2}, [{"from_sample": 9, "window": 60}], 448),
    ],
)
def test_every_row_of_a_pipeline_holds_the_largest_samples(parallel, phases, capacity):
    assert row_capacity(config(parallel=parallel, phases=phases)) == capacity

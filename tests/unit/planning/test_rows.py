"""How long rows are: those of a pipeline as the largest micro-batch of any phase, others as they need be."""

import numpy as np
import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.objective.mixture import Mixture
from megatron_glm.objective.window import Window
from megatron_glm.planning.rows import row_capacity, row_multiple, typical_row
from megatron_glm.tokenizer.special import SpecialTokens


def config(*, parallel, micro=3, phases=(), window=100, objective=None):
    return config_from_tree(
        {
            "model": {"num_layers": 4, "hidden_size": 12, "num_attention_heads": 3, "max_positions": 512},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "-"}], "window": window, "phases": list(phases)},
            "objective": objective or {"max_spans": 20},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 1, "global_batch_size": micro, "micro_batch_size": micro},
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


@pytest.mark.parametrize(("tensor", "multiple"), [(1, 64), (4, 64), (3, 192), (6, 192), (128, 128)])
def test_the_ranks_of_a_layer_can_divide_every_row(tensor, multiple):
    assert row_multiple(config(parallel={"tensor": tensor})) == multiple


SPECIAL = SpecialTokens(
    cls=1, eos=0, mask=2, sentence_mask=3, document_mask=4, start_of_piece=5, end_of_piece=6, block_mask=None
)


@pytest.mark.parametrize("objective", [{}, {"token": 0.0, "document": 1.0}, {"token": 0.5, "document": 0.5}])
def test_a_typical_row_is_the_mean_of_samples(objective):
    """Whole windows of one document; rows are padded to the next multiple."""
    micro, size = 8, 400
    one = config(parallel={}, micro=micro, objective={"max_spans": 60} | objective, window=size)
    mixture = Mixture(
        one.objective,
        SPECIAL,
        np.zeros(50, bool),
        max_positions=512,
        window=size,
        isolate_documents=True,
        seed=1,
    )
    window = Window(np.array([1, *np.full(size - 1, 20)], np.int32), np.array([0, size], np.int32))
    samples = mixture.samples(np.arange(400), [window] * 400)
    tokens = micro * np.mean([len(sample.input_ids) for sample in samples])
    targets = micro * np.mean([sample.loss_mask.sum() for sample in samples])
    found = typical_row(one)
    assert found.targets == pytest.approx(targets, rel=0.03)
    assert found.tokens == pytest.approx(tokens, rel=0.03)


def test_the_typical_row_of_a_pipeline_is_as_long_as_all_others():
    assert typical_row(config(parallel={"pipeline": 2})).tokens == 448

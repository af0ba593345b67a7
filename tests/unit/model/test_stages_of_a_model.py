"""A model in stages: each has its own layers under the names of the whole, and one after another they are the whole."""

import itertools

import pytest
import torch

from glm_kernels.attention import Visibility
from glm_kernels.dropout import RowKeys
from megatron_glm.config.schema import Model
from megatron_glm.model.glm import GLM
from megatron_glm.model.sizes import WORD_TABLE, parameter_shapes

NUM_IDS = 150
CONFIG = Model(
    num_layers=4, hidden_size=32, num_attention_heads=4, max_positions=40, hidden_dropout=0.3, attention_dropout=0.3
)


def part(*bounds):
    return GLM(CONFIG, num_ids=NUM_IDS, seed=3, layers=range(*bounds))


@pytest.mark.parametrize("bounds", [(0, 4), (0, 1, 4), (0, 1, 2, 3, 4)])
def test_the_stages_have_every_parameter_once_but_for_the_word_table(bounds):
    whole = dict(GLM(CONFIG, num_ids=NUM_IDS, seed=3).named_parameters())
    names = []
    for start, stop in itertools.pairwise(bounds):
        for name, parameter in part(start, stop).named_parameters():
            assert torch.equal(parameter, whole[name]), name
            names.append(name)
    if len(bounds) > 2:
        names.remove(WORD_TABLE)  # the last stage has it too
    assert sorted(names) == sorted(parameter_shapes(CONFIG, NUM_IDS))


def test_one_stage_after_another_is_the_whole_with_the_same_dropout():
    generator = torch.Generator().manual_seed(1)
    ids, positions, blocks = (torch.randint(0, high, (24,), generator=generator) for high in (NUM_IDS, 41, 41))
    visibility, keys = (
        Visibility.from_segments([(0, 7, 12), (12, 4, 20)], 24),
        RowKeys.from_lengths([3, 8], [12, 8], 24),
    )
    targets = torch.tensor([7, 9, 17])
    whole = GLM(CONFIG, num_ids=NUM_IDS, seed=3)(ids, positions, blocks, visibility, targets, keys, 5)
    stages = [part(0, 1), part(1, 3), part(3, 4)]
    hidden = stages[0].embed(ids, positions, blocks, stages[0].row(visibility, keys, 5))
    for stage in stages:
        assert hidden.shape == (24, 32)
        hidden = stage.transformer(hidden, stage.row(visibility, keys, 5), targets)
    assert torch.equal(hidden, whole)

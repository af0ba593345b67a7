"""The operations of a training step, as torch counts them and as we say."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.flops import forward_flops, peak_flops, step_flops
from megatron_glm.config.schema import Model
from megatron_glm.data.batch import collate
from megatron_glm.model.glm import GLM
from megatron_glm.objective.sample import Objective, Sample

MODEL = Model(
    num_layers=2, hidden_size=32, num_attention_heads=2, max_positions=64, hidden_dropout=0, attention_dropout=0
)
NUM_IDS = 100


def sample(index, part_a, part_b):
    n = part_a + part_b
    return Sample(
        index=index,
        objective=Objective.TOKEN,
        input_ids=np.arange(n, dtype=np.int32) % NUM_IDS,
        targets=np.arange(n, dtype=np.int32) % NUM_IDS,
        loss_mask=np.arange(n) >= part_a,
        position_ids=np.arange(n, dtype=np.int32),
        block_position_ids=np.zeros(n, np.int32),
        segments=np.array([[0, part_a, n]], np.int32),
    )


@pytest.fixture(scope="module")
def batch():
    return collate([sample(0, 21, 9), sample(1, 5, 29)], pad_id=0)  # 64 tokens: a row without padding


def test_they_are_those_that_torch_counts_in_the_forward_pass(batch):
    model = GLM(MODEL, num_ids=NUM_IDS, seed=0, attention_backend="triton")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        hidden = model(
            batch.input_ids, batch.position_ids, batch.block_position_ids, batch.visibility, batch.target_index
        )
        model.token_loss(hidden, batch.target_ids)
    pairs = int(batch.visibility.dense().sum())
    assert counter.get_total_flops() == forward_flops(MODEL, tokens=64, targets=38, pairs=pairs, ids=NUM_IDS)


def test_the_backward_pass_is_counted_twice(batch):
    pairs = 21 * 21 + 9 * 21 + 45 + 5 * 5 + 29 * 5 + 435
    forward = forward_flops(MODEL, tokens=64, targets=38, pairs=pairs, ids=NUM_IDS)
    assert step_flops(MODEL, batch, NUM_IDS) == 3 * forward


def test_padding_costs_nothing():
    short = collate([sample(0, 21, 9)], pad_id=0)
    padded = collate([sample(0, 21, 9)], pad_id=0, capacity=128)
    assert step_flops(MODEL, short, NUM_IDS) == step_flops(MODEL, padded, NUM_IDS)


def test_the_rate_of_a_gpu_is_known_by_its_name():
    assert peak_flops("NVIDIA H200") == peak_flops("NVIDIA H100 80GB HBM3") == 989.4e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 311.8e12
    assert peak_flops("Tesla T4") is None

"""A model trained with all kernels in the interpreter, and with the plain formulas: the same curve.

Both drop the same entries: the reference replays the masks that the kernels draw.
"""

from contextlib import ExitStack
from unittest import mock

import numpy as np
import pytest
import torch

from glm_kernels.attention import interval_op
from glm_kernels.dropout.philox_reference import hidden_kept
from megatron_glm.config.schema import Model
from megatron_glm.data.batch import collate
from megatron_glm.model.glm import GLM
from megatron_glm.objective.sample import Objective, Sample

NUM_IDS, SAMPLES, LENGTH, PART_A = 60, 2, 32, 24
MODEL = Model(
    num_layers=1,
    hidden_size=32,
    num_attention_heads=1,
    max_positions=40,
    hidden_dropout=0.1,
    attention_dropout=0.1,
)
LEARNING_RATE = 3e-3


def batch(step):
    """Samples of a language with a rule to learn: each id is three times the one before it."""
    samples = []
    for index in range(step * SAMPLES, (step + 1) * SAMPLES):
        text = 1 + np.random.default_rng(index).integers(NUM_IDS) * 3 ** np.arange(LENGTH) % (NUM_IDS - 1)
        places = np.arange(LENGTH)
        samples.append(
            Sample(
                index=index,
                objective=Objective.TOKEN,
                input_ids=text.astype(np.int32),
                targets=np.roll(text, -1).astype(np.int32),
                loss_mask=(places >= PART_A) & (places < LENGTH - 1),
                position_ids=np.minimum(places, PART_A).astype(np.int32),
                block_position_ids=np.maximum(places - PART_A + 1, 0).astype(np.int32),
                segments=np.array([[0, PART_A, LENGTH]], np.int32),
            )
        )
    return collate(samples, pad_id=0)


def replayed_drops(probability, width, row_keys, key):
    """What `hidden_drops` returns, but of the masks that the kernels draw."""
    return ~torch.from_numpy(hidden_kept(probability, row_keys.token_key.numpy(), width, key=key))


@pytest.fixture
def kernels():
    """All operations that a GPU would run as kernels run as those; how often attention did is counted."""
    with ExitStack() as stack:
        for module in ("embedding.op", "dropout.op", "loss.op"):
            stack.enter_context(mock.patch(f"glm_kernels.{module}.runs_on_triton", return_value=True))
        yield stack.enter_context(
            mock.patch("glm_kernels.attention.interval.interval_attention", wraps=interval_op.interval_attention)
        )


def curve(steps, attention_backend):
    model = GLM(MODEL, num_ids=NUM_IDS, seed=1, attention_backend=attention_backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for step in range(steps):
        row = batch(step)
        hidden = model(
            row.input_ids,
            row.position_ids,
            row.block_position_ids,
            row.visibility,
            row.target_index,
            row_keys=row.row_keys,
            dropout_seed=7,
        )
        loss = model.token_loss(hidden, row.target_ids).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def reference_curve(steps):
    with mock.patch("glm_kernels.dropout.op.hidden_drops", side_effect=replayed_drops) as drops:
        losses = curve(steps, "reference")
    assert drops.call_count == 3 * steps  # embedding, attention output, MLP output
    return losses


@pytest.mark.parametrize("steps", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_training_with_kernels_has_the_curve_of_the_plain_formulas(steps, request):
    expected = reference_curve(steps)
    attention = request.getfixturevalue("kernels")
    found = curve(steps, "triton")
    assert attention.call_count == steps
    assert np.abs(found - expected).max() < 1e-4
    if steps == 200:  # the curve is one of learning, not of noise
        assert expected[-20:].mean() < 0.5 * expected[:20].mean()


def test_the_curve_depends_on_the_masks():
    with mock.patch("glm_kernels.dropout.op.hidden_drops", side_effect=replayed_drops):
        replayed = curve(5, "reference")
    assert np.abs(curve(5, "reference") - replayed).max() > 1e-3

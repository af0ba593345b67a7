"""The model with the kernels of embedding, dropout and loss: what it computes with the masks that they draw."""

import pytest
import torch

from glm_kernels.attention import Visibility
from glm_kernels.dropout import DropoutKey, RowKeys
from glm_kernels.dropout.philox_reference import hidden_kept
from megatron_glm.config.schema import Model
from megatron_glm.model.glm import GLM

NUM_IDS, SAMPLES, LENGTHS, PADDING = 150, (7, 4), (20, 9), 3
T = sum(LENGTHS) + PADDING


def kernels_masks(probability: float, width: int, row_keys: RowKeys, key: DropoutKey) -> torch.Tensor:
    """In place of `hidden_drops`: what the kernels drop, from the NumPy reference."""
    return ~torch.from_numpy(hidden_kept(probability, row_keys.token_key.numpy(), width, key=key))


def step(model: GLM) -> dict[str, torch.Tensor]:
    """Loss and gradients, by parameter."""
    generator = torch.Generator().manual_seed(1)
    ids, positions, blocks = (torch.randint(0, high, (T,), generator=generator) for high in (NUM_IDS, 41, 3))
    visibility = Visibility.from_segments([(0, 14, 20), (20, 4, 29)], T)
    targets = torch.tensor([3, 15, 22, 28])
    keys = RowKeys.from_lengths(SAMPLES, LENGTHS, T)
    hidden = model(ids, positions, blocks, visibility, targets, keys, dropout_seed=5)
    loss, _ = model.smoothed_loss(hidden, ids[targets], 0.1)
    model.zero_grad()
    loss.sum().backward()
    return {"loss": loss.detach(), **{name: p.grad.clone() for name, p in model.named_parameters()}}


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_losses_and_gradients_are_those_of_torch_with_the_same_masks(recompute, monkeypatch):
    sizes = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "max_positions": 40}
    config = Model(**sizes, hidden_dropout=0.3, attention_dropout=0.0)
    model = GLM(config, num_ids=NUM_IDS, seed=1, recompute=recompute).train()
    launched = set()

    def on_kernels(tensor: torch.Tensor) -> bool:
        launched.add(tuple(tensor.shape))
        return True

    with monkeypatch.context() as patched:
        patched.setattr("glm_kernels.dispatch._on_a_gpu", on_kernels)
        got = step(model)
    assert launched == {(256, 32), (T, 32), (4, 32)}  # the word table; the rows of the layers; the targets
    monkeypatch.setattr("glm_kernels.dropout.op.hidden_drops", kernels_masks)
    expected = step(model)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-5, atol=1e-5, msg=name)

"""The embedding gradient shrinks on its way from the input, and there only."""

import pytest
import torch

from glm_kernels.attention import Visibility
from megatron_glm.config.schema import Model
from megatron_glm.model.glm import GLM
from megatron_glm.model.gradient_scale import scale_gradient

CONFIG = Model(
    num_layers=2, hidden_size=16, num_attention_heads=2, max_positions=16, hidden_dropout=0, attention_dropout=0
)


def gradients(factor, targets=5):
    """Of every parameter; the tied word table gets some from the input and some from the output layer."""
    model = GLM(CONFIG, num_ids=60, seed=1)
    ids = torch.arange(9)
    visibility = Visibility.from_segments([(0, 4, 9)], 9)
    hidden = model(ids, ids, ids, visibility, ids[:targets], embedding_gradient=factor)
    loss = model.token_loss(hidden, 40 + torch.arange(targets)).sum()
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def test_forward_it_is_nothing():
    x = torch.randn(3, 2)
    assert torch.equal(scale_gradient(x, 0.1), x)
    assert scale_gradient(x, 1.0) is x


@pytest.mark.parametrize("factor", [0.1, 0.5])
def test_the_input_s_share_of_the_tied_table_s_gradient_is_multiplied_and_the_output_s_is_not(factor):
    (loss, whole), (same_loss, shrunk) = gradients(1.0), gradients(factor)
    (_, outputs_alone) = gradients(1e-30)
    assert same_loss == loss
    name = "word_embeddings.weight"
    output = outputs_alone[name]
    assert output.abs().max() > 0.1
    assert (whole[name] - output).abs().max() > 0.01
    torch.testing.assert_close(shrunk[name] - output, factor * (whole[name] - output), rtol=1e-4, atol=1e-6)
    assert all(torch.equal(shrunk[other], whole[other]) for other in whole if other != name)

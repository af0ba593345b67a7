"""Clipping: the norm is exact for large tensors, and what is within the limit is left alone."""

import pytest
import torch

from megatron_glm.training.engines.clipping import clip_gradients


def parameters(*gradients):
    made = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        parameter.grad = gradient.clone()
    return made


def test_the_norm_of_millions_of_entries_is_exact():
    gradient = torch.randn(4_000_000, generator=torch.Generator().manual_seed(1)) * 1e-3
    norm = clip_gradients(parameters(gradient, torch.tensor([3.0, 4.0])), 0.0)
    assert norm == pytest.approx(float((gradient.double().square().sum() + 25).sqrt()), rel=1e-9)


@pytest.mark.parametrize(("limit", "scale"), [(0.0, 1.0), (20.0, 1.0), (6.5, 0.5)])
def test_gradients_are_scaled_to_the_limit_together(limit, scale):
    made = parameters(torch.tensor([3.0, 4.0]), torch.tensor([12.0]))
    assert clip_gradients(made, limit) == pytest.approx(13.0)
    torch.testing.assert_close(made[0].grad, scale * torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(made[1].grad, scale * torch.tensor([12.0]))


def test_a_gradient_that_is_not_finite_is_told():
    assert clip_gradients(parameters(torch.tensor([float("nan"), 1.0])), 1.0) != clip_gradients(
        parameters(torch.tensor([0.0, 1.0])), 1.0
    )


def test_what_another_stage_has_too_is_scaled_and_not_counted():
    made = parameters(torch.tensor([3.0, 4.0]), torch.tensor([12.0]))
    made[1].ds_pipe_replicated = True
    assert clip_gradients(made, 2.5) == pytest.approx(5.0)
    torch.testing.assert_close(made[1].grad, torch.tensor([6.0]))

"""The chunked loss of the output layer against the full matrix of logits."""

import pytest
import torch
from torch.autograd import gradcheck

from glm_kernels.loss import linear_cross_entropy, smoothed_cross_entropy
from glm_kernels.loss.reference import linear_cross_entropy_reference


def make_inputs(N, V=40, H=12, num_valid=33, dtype=torch.float64):
    generator = torch.Generator().manual_seed(N)
    hidden = torch.randn(N, H, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(V, H, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, num_valid, (N,), generator=generator)


def results(function, hidden, weight, targets, num_valid=33):
    nll = function(hidden, weight, targets, num_valid=num_valid)
    upstream = torch.linspace(-1, 2, len(nll), dtype=nll.dtype)
    return nll, *torch.autograd.grad(nll, (hidden, weight), upstream)


@pytest.fixture(params=[1 << 24, 33 * 3, 1], ids=["one chunk", "three tokens a chunk", "one token a chunk"])
def chunk(request, monkeypatch):
    monkeypatch.setattr("glm_kernels.loss.chunks.CHUNK_LOGITS", request.param)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("N", [0, 1, 3, 10])
def test_losses_and_gradients_are_those_of_the_full_logits(N):
    inputs = make_inputs(N)
    fast, plain = results(linear_cross_entropy, *inputs), results(linear_cross_entropy_reference, *inputs)
    for got, expected in zip(fast, plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("chunk")
def test_gradients_are_those_of_finite_differences():
    hidden, weight, targets = make_inputs(5)
    assert gradcheck(lambda h, w: linear_cross_entropy(h, w, targets, num_valid=33), (hidden, weight))


def test_in_bf16_it_is_as_exact_as_the_full_logits_in_bf16():
    hidden, weight, targets = make_inputs(200, V=1024, H=64, num_valid=1000, dtype=torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    fast = results(linear_cross_entropy, hidden, weight, targets, 1000)
    plain = results(linear_cross_entropy_reference, hidden, weight, targets, 1000)
    truth = results(linear_cross_entropy_reference, *exact, targets, 1000)
    assert [x.dtype for x in fast] == [torch.float32, torch.bfloat16, torch.bfloat16]
    for got, rounded, expected in zip(fast, plain, truth, strict=True):
        assert (got - expected).norm() <= 1.05 * (rounded - expected).norm()


def test_padded_rows_of_the_table_get_no_gradient_and_have_no_say():
    hidden, weight, targets = make_inputs(6)
    before = results(linear_cross_entropy, hidden, weight, targets)
    with torch.no_grad():
        weight[33:] = 1e3
    after = results(linear_cross_entropy, hidden, weight, targets)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not after[2][33:].any()


def test_without_targets_the_gradients_are_zero_and_there():
    hidden, weight, targets = make_inputs(0)
    linear_cross_entropy(hidden, weight, targets, num_valid=33).sum().backward()
    assert hidden.grad.shape == (0, 12)
    assert weight.grad is not None
    assert not weight.grad.any()


def test_large_logits_do_not_overflow():
    hidden, weight, targets = make_inputs(4, dtype=torch.float32)
    nll = linear_cross_entropy(hidden * 1e4, weight, targets, num_valid=33)
    assert nll.isfinite().all()


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("N", [0, 1, 10])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_label_smoothing_is_uniform_over_the_valid_ids(N, smoothing):
    inputs = make_inputs(N)

    def smoothed(*arguments, num_valid):
        loss, nll = smoothed_cross_entropy(*arguments, num_valid=num_valid, label_smoothing=smoothing)
        assert not nll.requires_grad
        torch.testing.assert_close(nll, linear_cross_entropy(*arguments, num_valid=num_valid), rtol=0, atol=1e-12)
        return loss

    def reference(*arguments, num_valid):
        return linear_cross_entropy_reference(*arguments, num_valid=num_valid, label_smoothing=smoothing)

    for got, expected in zip(results(smoothed, *inputs), results(reference, *inputs), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)

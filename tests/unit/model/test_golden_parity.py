"""The model against the original code: logits and every gradient, however the samples are arranged."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from glm_kernels.attention import Visibility
from megatron_glm.config.schema import Model
from megatron_glm.model.glm import GLM

LOGITS_BOUND = 5e-6
GRADIENT_BOUND = 2e-6  # of the largest entry of the tensor

CONFIG = Model(
    num_layers=3,
    hidden_size=64,
    num_attention_heads=4,
    max_positions=48,
    vocab_size=160,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)


@pytest.fixture(scope="module")
def golden(shared):
    return load_file(shared("golden/glm_reference_tiny.safetensors"))


def run(golden, order=(0, 1, 2), padding=0, recompute="none"):
    """Loss, logits by sample and gradients of the samples in one row, in the given order."""
    model = GLM(CONFIG, num_ids=160, seed=None, recompute=recompute)
    model.load_state_dict({k.removeprefix("param."): v for k, v in golden.items() if k.startswith("param.")})
    lengths = [int(golden["in.lengths"][sample]) for sample in order]

    def row(values):  # a padded [3, 40] array -> the flat row
        parts = [values[sample, :length] for sample, length in zip(order, lengths, strict=True)]
        return torch.cat([*parts, values.new_zeros(padding)])

    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    segments = [
        (start, int(golden["in.sep"][sample]), start + length)
        for sample, start, length in zip(order, starts, lengths, strict=True)
    ]
    tokens = sum(lengths)
    hidden = model(
        row(golden["in.input_ids"]),
        row(golden["in.position_ids"][:, 0]),
        row(golden["in.position_ids"][:, 1]),
        Visibility.from_segments(segments, tokens + padding).to(golden["in.input_ids"].device),
        torch.arange(tokens),
    )
    nll = model.token_loss(hidden, row(golden["in.targets"])[:tokens])
    weights = row(golden["in.loss_mask"])[:tokens]
    loss = (nll * weights).sum() / weights.sum()
    loss.backward()
    logits = dict(zip(order, model.logits(hidden).detach().split(lengths), strict=True))
    return SimpleNamespace(loss=loss.item(), logits=logits, model=model)


def logits_error(golden, result):
    return max(
        (logits - golden["out.logits"][sample, : len(logits)]).abs().max().item()
        for sample, logits in result.logits.items()
    )


def gradient_error(golden, result):
    expected = {name: golden[f"grad.{name}"] for name, _ in result.model.named_parameters()}
    return max(
        ((parameter.grad - expected[name]).abs().max() / expected[name].abs().max()).item()
        for name, parameter in result.model.named_parameters()
    )


@pytest.mark.golden
@pytest.mark.parametrize(
    "arrangement",
    [
        {},
        {"order": (2, 0, 1)},
        {"order": (1, 2, 0), "padding": 17},
        {"recompute": "full"},
    ],
    ids=["packed", "reordered", "padded", "recomputed"],
)
def test_logits_and_gradients_are_those_of_the_original(golden, arrangement):
    result = run(golden, **arrangement)
    assert result.loss == pytest.approx(golden["out.loss"].item(), abs=1e-6)
    assert logits_error(golden, result) <= LOGITS_BOUND
    assert gradient_error(golden, result) <= GRADIENT_BOUND


@pytest.mark.golden
def test_one_sample_alone_gives_the_same_logits(golden):
    for sample in range(3):
        assert logits_error(golden, run(golden, order=(sample,))) <= LOGITS_BOUND


@pytest.mark.golden
def test_the_bounds_notice_an_exact_gelu(golden, monkeypatch):
    gelu = torch.nn.functional.gelu
    monkeypatch.setattr("megatron_glm.model.mlp.F.gelu", lambda x, approximate: gelu(x))
    result = run(golden)
    assert logits_error(golden, result) > LOGITS_BOUND
    assert gradient_error(golden, result) > GRADIENT_BOUND


@pytest.mark.golden
def test_the_bounds_notice_another_layernorm_eps(golden, monkeypatch):
    monkeypatch.setattr("megatron_glm.model.layer.LAYERNORM_EPS", 1e-6)
    monkeypatch.setattr("megatron_glm.model.transformer.LAYERNORM_EPS", 1e-6)
    result = run(golden)
    assert logits_error(golden, result) > LOGITS_BOUND
    assert gradient_error(golden, result) > GRADIENT_BOUND

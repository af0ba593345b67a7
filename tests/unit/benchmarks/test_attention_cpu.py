"""The attention benchmark compares equals, and what it measures is as claimed."""

import json

import pytest
import torch

from benchmarks.attention_cpu import BASELINE, SHAPES, TRAINING, main, variants


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_all_variants_compute_the_same(shape):
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(4 * shape[1], 1, 64, generator=generator).requires_grad_() for _ in range(3)]
    upstream = torch.randn(inputs[0].shape, generator=generator)
    functions = variants(*shape)
    expected = functions.pop(BASELINE)(*inputs)
    gradients = torch.autograd.grad(expected, inputs, upstream)
    assert functions.pop(f"{TRAINING}, dropout 0.1")(*inputs).shape == expected.shape
    for name, function in functions.items():
        got = function(*inputs)
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-6, msg=name)
        for a, b in zip(torch.autograd.grad(got, inputs, upstream), gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=2e-5, msg=name)


def test_training_beats_one_masked_call_and_no_stock_way_beats_training(tmp_path, capsys):
    threads = torch.get_num_threads()
    report = tmp_path / "report.json"
    main(["--heads", "1", "--repeats", "1", "--json", str(report)])
    assert torch.get_num_threads() == threads
    result = json.loads(report.read_text(encoding="utf-8"))
    assert [(row["objective"], row["type"]) for row in result["rows"]] == [
        (objective, kind) for kind in ("fp32", "bf16") for objective in ("token", "document")
    ]
    for row in result["rows"]:
        seconds = row["seconds"]
        # On an idle machine 4 times as fast and never slower than the best; the bounds leave room for a busy one.
        assert seconds[BASELINE] > 2 * seconds[TRAINING]
        assert seconds[BASELINE] > 2 * seconds[f"{TRAINING}, dropout 0.1"]
        stock = min(time for name, time in seconds.items() if TRAINING not in name)
        assert seconds[TRAINING] < 1.5 * stock
    assert result["command"].startswith("python -m benchmarks.attention_cpu --heads 1")
    assert "in training, dropout 0.1" in capsys.readouterr().out

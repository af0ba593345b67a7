"""The parts of the GPU benchmark compare equals; a CPU goes through their motions."""

import json
import math
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch

from benchmarks.gpu import attention, fused, training_step
from benchmarks.gpu.bench import Bench, run_part
from benchmarks.gpu.rows import sample_row
from benchmarks.gpu.sizes import TOY
from glm_kernels.attention.reference import attention_reference

BENCH = Bench(torch.device("cpu"), TOY)


def flash_by_formula(query, key, value, call, *, dropout):
    """What FlashAttention does with a call, in plain torch."""
    assert dropout == 0
    bounds = list(zip(call.query_ends.tolist(), call.key_ends.tolist(), strict=True))
    outputs = []
    for (q0, k0), (q1, k1) in pairwise(bounds):
        scores = torch.einsum("qhd,khd->hqk", query[q0:q1], key[k0:k1]) / math.sqrt(query.shape[-1])
        if call.causal:
            visible = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(diagonal=(k1 - k0) - (q1 - q0))
            scores = scores.masked_fill(~visible, -math.inf)
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[k0:k1]))
    return torch.cat(outputs)


def test_the_contestants_of_attention_compute_the_same(monkeypatch):
    row = sample_row(40, 2, BENCH)
    inputs = [torch.randn(row.tokens, 1, 64) for _ in range(3)]
    expected = attention_reference(*inputs, row.visibility.dense())
    functions = dict(attention.contestants(BENCH, row, 0.0))
    monkeypatch.setattr(attention, "_flash", flash_by_formula)
    calls = attention.flash_calls(row.visibility.segments, BENCH.device)
    functions[attention.FLASH] = attention._two_flash_calls(calls, 0.0)
    for name, function in functions.items():
        torch.testing.assert_close(function(*inputs), expected, rtol=0, atol=3e-6, msg=name)


def test_pairs_are_those_of_the_mask():
    row = sample_row(40, 3, BENCH)
    assert row.visible_pairs() == int(row.visibility.dense().sum())
    assert row.causal_pairs() == 3 * 40 * 41 // 2
    x = torch.arange(float(row.tokens * 2)).view(row.tokens, 1, 2)
    assert torch.equal(row.by_sample(x)[1, 0], x[40:80, 0])


@pytest.mark.parametrize("dropout", attention.DROPOUTS)
def test_a_row_of_attention_has_times_and_rates(dropout):
    row = sample_row(40, 1, BENCH)
    name, ours = next(attention.contestants(BENCH, row, dropout))
    result = attention.measured(BENCH, row, dropout, name, ours)
    assert (result["contestant"], result["dropout"]) == (attention.OURS, dropout)
    assert result["forward_tflops"] == pytest.approx(4 * row.visible_pairs() * 64 / result["forward_ms"] / 1e9)
    assert result["backward_tflops"] == pytest.approx(10 * row.visible_pairs() * 64 / result["backward_ms"] / 1e9)


def test_a_contestant_that_cannot_is_reported():
    def cannot(*_):
        raise RuntimeError("no kernel\nfor this")

    result = attention.measured(BENCH, sample_row(40, 1, BENCH), 0.0, attention.FLASH, cannot)
    assert result["error"] == "no kernel for this"


def test_the_ways_of_an_operation_without_dropout_compute_the_same():
    for operation in (fused._loss(BENCH), fused._norm(BENCH), fused._bias_gelu(BENCH)):
        expected = operation.ways[fused.EAGER](*operation.tensors)
        for name, way in operation.ways.items():
            assert (way(*operation.tensors) - expected).abs().max() <= 0.05 * expected.abs().max(), (operation, name)


def test_an_operation_has_a_row_for_each_way():
    rows = list(fused.measured(BENCH, fused._norm(BENCH)))
    assert [row["way"] for row in rows] == [fused.COMPILED, fused.EAGER]
    assert all(row["forward_ms"] > 0 and row["gb_per_s"] > 0 and row["peak_mb"] is None for row in rows)


def test_a_part_leaves_its_rows_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert run_part("some", lambda bench: [{"heads": bench.sizes.heads}], ["--dry-run", "--output", str(tmp_path)]) == 0
    part = json.loads((tmp_path / "some.json").read_text(encoding="utf-8"))
    assert (part["part"], part["rehearsal"], part["rows"]) == ("some", True, [{"heads": 1}])


def test_what_a_part_found_before_it_was_stopped_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def stopped(_):
        yield {"number": 1}
        yield {"number": 2}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_part("some", stopped, ["--dry-run", "--output", str(tmp_path)])
    assert json.loads((tmp_path / "some.json").read_text(encoding="utf-8"))["rows"] == [{"number": 1}, {"number": 2}]
    assert [file.name for file in tmp_path.iterdir()] == ["some.json"]


def test_a_way_or_a_model_that_cannot_is_reported_and_the_next_one_measured(monkeypatch):
    operation = fused._norm(BENCH)
    operation.ways[fused.COMPILED] = None
    first, second = fused.measured(BENCH, operation)
    assert "not callable" in first["error"]
    assert second["forward_ms"] > 0

    def no_compiler(_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(training_step, "build_model", lambda *_: None)
    monkeypatch.setattr(training_step, "make_groups", lambda _: None)
    monkeypatch.setattr(training_step, "ZeroEngine", lambda *_, groups, accumulation: None)
    monkeypatch.setattr(training_step, "compile_parts", no_compiler)
    monkeypatch.setattr(
        training_step, "timed_steps", lambda _, config, num_ids, engine: {"mfu": 1 / (24 - config.model.num_layers)}
    )
    monkeypatch.setattr(training_step, "distributed_processes", lambda threads: nullcontext())
    monkeypatch.setattr(training_step, "_toy", lambda _: [])
    large, _, stack, compiled = training_step.measure(BENCH)
    assert large == {"model": "GLM-Large", "compiled": False, "error": "division by zero"}
    assert stack == {"model": "1 layers of GLM-2B", "compiled": False, "mfu": 1 / 23}
    assert compiled == {"model": "1 layers of GLM-2B", "compiled": True, "error": "no compiler"}


def test_a_part_refuses_to_run_without_a_gpu_or_interpreter(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    for arguments, message in (
        (["--dry-run"], "set TRITON_INTERPRET=1"),
        ([], "torch sees no GPU; --dry-run rehearses"),
    ):
        if not arguments and torch.cuda.is_available():
            continue
        with pytest.raises(SystemExit):
            run_part("some", lambda bench: [], [*arguments, "--output", str(tmp_path)])
        assert message in capsys.readouterr().err

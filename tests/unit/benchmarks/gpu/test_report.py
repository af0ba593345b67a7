"""The report says what was measured, what was aimed at, and what went wrong."""

import json

import pytest

from benchmarks.gpu.report import FLASH, FLEX, OURS, aims, main


def row(contestant, forward, backward, samples=1, length=512, **more):
    times = {"forward_ms": forward, "backward_ms": backward, "forward_tflops": 1.0, "backward_tflops": 2.0}
    return {"contestant": contestant, "length": length, "samples": samples, "dropout": 0.0, **times, **more}


ATTENTION = [
    *(row(OURS, 1.0, 3.0), row(FLASH, 0.8, 2.1), row(FLEX, 9.0, 9.0)),
    *(row(OURS, 2.0, 4.0, samples=32), row(FLASH, 2.0, 3.2, samples=32), row(FLEX, 4.0, 5.6, samples=32)),
    *(row(OURS, 5.0, 5.0, dropout=0.1), row(FLASH, 0.1, 0.1, dropout=0.1)),
]
TRAINING = [
    {"model": "GLM-Large", "compiled": False, "mfu": 0.2}
    | {"tokens": 9, "step_ms": 1.5, "tokens_per_s": 6.0}
    | {"tflops": 0.7, "peak_gb": 2.0},
    {
        "model": "GLM-Large",
        "compiled": True,
        "mfu": 0.34,
        "tokens": 9,
        "step_ms": 1.0,
        "tokens_per_s": 9.0,
        "tflops": 1.0,
        "peak_gb": 2.0,
    },
    {"model": "12 layers of GLM-2B", "compiled": True, "mfu": 0.39}
    | {"tokens": 9, "step_ms": 1.0, "tokens_per_s": 9e3}
    | {"tflops": 1.0, "peak_gb": 2.0},
]


def test_an_aim_is_judged_by_the_worst_row_without_dropout():
    found = {aim.what: (aim.worst, aim.verdict) for aim in aims({"attention": ATTENTION, "training_step": TRAINING})}
    assert found == {
        "attention forward, share of flash varlen's speed": (0.8, "missed"),
        "attention backward, share of flash varlen's speed": (pytest.approx(0.7), "met"),
        "attention forward on packed rows, times FlexAttention's speed": (2.0, "met"),
        "attention backward on packed rows, times FlexAttention's speed": (pytest.approx(1.4), "met"),
        "GLM-Large, MFU of a training step": (0.34, "met"),
        "GLM-2B, MFU of a training step": (0.39, "missed"),
    }


def test_what_was_not_measured_is_neither_met_nor_missed():
    assert {aim.verdict for aim in aims({})} == {"not measured"}
    failed = [row(OURS, 1.0, 1.0), {"contestant": FLASH, "length": 512, "samples": 1, "dropout": 0.0, "error": "no"}]
    assert {aim.verdict for aim in aims({"attention": failed})} == {"not measured"}


def write(folder, status, rehearsal=False, attention=ATTENTION):
    for name, rows in (("attention", attention), ("training_step", TRAINING)):
        part = {"part": name, "rehearsal": rehearsal, "seconds": 3.0, "rows": rows}
        (folder / f"{name}.json").write_text(json.dumps(part), encoding="utf-8")
    (folder / "status.txt").write_text(status, encoding="utf-8")


def test_the_report_is_json_a_table_and_a_picture(tmp_path, capsys):
    parts, output = tmp_path / "parts", tmp_path / "report"
    parts.mkdir()
    write(parts, "tests 0\nattention 0\ntraining_step 0\n")
    assert main([str(parts), str(output)]) == 0
    report = json.loads((output / "gpu_check.json").read_text(encoding="utf-8"))
    assert report["status"] == {"tests": 0, "attention": 0, "training_step": 0}
    assert [aim["verdict"] for aim in report["aims"]].count("met") == 4
    text = (output / "gpu_check.md").read_text(encoding="utf-8")
    assert "| 32 × 512 | 0 | FlexAttention, intervals | 4 | 1 | 5.6 | 2 |" in text
    assert "| GLM-Large, MFU of a training step | ≥ 0.3 | 0.34 | met |" in text
    assert "| GLM-Large | torch's | 9 | 1.5 | 6 |" in text
    assert "| GLM-Large | compiled | 9 | 1 | 9 |" in text
    assert "rehearsal" not in text
    assert text in capsys.readouterr().out
    assert (output / "attention.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("status", ["tests 1\n", "tests 0\ntraining_step 124\n"])
def test_a_part_that_failed_or_hung_fails_the_whole(status, tmp_path):
    write(tmp_path, status)
    assert main([str(tmp_path), str(tmp_path)]) == 1


def test_so_does_attention_of_ours_that_could_not_run(tmp_path):
    error = {"contestant": OURS, "length": 512, "samples": 1, "dropout": 0.0, "error": "out of memory"}
    write(tmp_path, "tests 0\n", attention=[error])
    assert main([str(tmp_path), str(tmp_path)]) == 1
    assert "out of memory" in (tmp_path / "gpu_check.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("part", "row", "code"),
    [
        ("fused", {"operation": "norm", "way": OURS, "error": "no memory"}, 1),
        ("fused", {"operation": "norm", "way": "eager", "error": "no memory"}, 0),
        ("training_step", {"model": "GLM-Large", "compiled": True, "error": "no memory"}, 1),
    ],
)
def test_what_could_not_run_stands_in_the_table_and_fails_the_whole_if_it_is_ours(part, row, code, tmp_path):
    write(tmp_path, "tests 0\n")
    report = {"part": part, "rehearsal": False, "seconds": 3.0, "rows": [row]}
    (tmp_path / f"{part}.json").write_text(json.dumps(report), encoding="utf-8")
    assert main([str(tmp_path), str(tmp_path)]) == code
    assert "| no memory |" in (tmp_path / "gpu_check.md").read_text(encoding="utf-8")


def test_a_rehearsal_says_so(tmp_path):
    write(tmp_path, "tests 0\n", rehearsal=True)
    main([str(tmp_path), str(tmp_path)])
    assert "the times mean nothing" in (tmp_path / "gpu_check.md").read_text(encoding="utf-8").splitlines()[0]

"""The script for a GPU, rehearsed from the first line to the report on a CPU: only the times are not real."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "benchmarks" / "gpu_check.sh"


def run(*arguments, **variables):
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"} | variables
    return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_whole_of_it_runs_on_a_cpu(tmp_path):
    done = run("--dry-run", "--output", str(tmp_path / "report"))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report" / "gpu_check.json").read_text(encoding="utf-8"))
    assert report["status"] == {"tests": 0, "attention": 0, "fused": 0, "training_step": 0}
    assert report["rehearsal"]
    assert {row["contestant"] for row in report["parts"]["attention"]} == {"ours", "SDPA, mask"}
    assert {row["operation"] for row in report["parts"]["fused"] if row["way"] == "ours"} == {
        *("embedding + dropout", "dropout + residual", "output layer + loss"),
    }
    assert [row["compiled"] for row in report["parts"]["training_step"]] == [False, True] * 2
    for row in report["parts"]["training_step"]:
        assert row["losses"][-1] < row["losses"][0]
        assert row["tokens_per_s"] > 0
    logs = [f"{part}.log" for part in report["status"]]
    assert sorted(file.name for file in (tmp_path / "report").iterdir()) == sorted(
        ["attention.png", "gpu_check.json", "gpu_check.md", *logs]
    )
    assert " passed" in done.stdout


def test_an_unknown_option_is_refused():
    done = run("--fast")
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_without_a_gpu_it_says_so_and_leaves_no_report(tmp_path):
    done = run("--output", str(tmp_path), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: torch sees no GPU; --dry-run rehearses on a CPU"
    assert list(tmp_path.iterdir()) == []

"""A few kills of the sweep: it runs, and what was killed ends as if nothing had happened."""

import json
import random

import pytest

from benchmarks.kill_sweep import main
from benchmarks.run_state import PHASES


@pytest.mark.slow
@pytest.mark.distributed
def test_a_quick_sweep_finds_every_output_identical(tmp_path, capsys):
    text, path = tmp_path / "text.jsonl", tmp_path / "report.json"
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
    paragraphs = [" ".join(draw.choices(words, k=30)) for _ in range(2000)]
    text.write_text(json.dumps({"text": "\n".join(paragraphs)}) + "\n", encoding="utf-8")
    assert main(["--quick", "--text", str(text), "--json", str(path)]) == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    kills = report["preprocess"]["kills"]
    assert len(kills) >= 3
    assert all(kill["hit"] in PHASES and kill["exit_code"] != 0 for kill in kills)
    assert report["preprocess"]["outputs compared, all identical"] > 0
    assert report["loader"]["equal"]
    assert "kill 3: " in capsys.readouterr().out

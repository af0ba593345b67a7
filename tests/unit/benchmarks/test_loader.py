"""The loader's benchmark runs, and says what it measured."""

import json

from benchmarks.loader import main


def test_each_way_of_loading_is_measured(tmp_path, capsys):
    report = tmp_path / "report.json"
    main(["--steps", "2", "--tokens", "200000", "--busy", "0.05", "--json", str(report)])
    result = json.loads(report.read_text(encoding="utf-8"))
    assert {"commit", "command", "versions", "machine"} <= result.keys()
    rows = {row["way"]: row for row in result["results"]}
    assert list(rows) == ["in line", "a thread", "1 worker", "2 workers"]
    assert all(row["taken at once, steps/s"] > 0 for row in rows.values())
    assert rows["in line"]["memory of a worker, MB"] == 0 < rows["1 worker"]["memory of a worker, MB"] < 200
    assert "taken at once" in capsys.readouterr().out

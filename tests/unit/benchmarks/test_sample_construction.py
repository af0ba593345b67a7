"""The sample benchmark runs, and what it measures is as claimed."""

import json

from benchmarks.sample_construction import main


def test_a_batch_is_made_faster_than_its_samples_one_by_one(tmp_path, capsys):
    report = tmp_path / "report.json"
    main(["--samples", "512", "--tokens", "300000", "--repeats", "2", "--json", str(report)])
    result = json.loads(report.read_text(encoding="utf-8"))
    assert {"commit", "command", "machine"} <= result.keys()
    assert {"python", "numpy"} == result["versions"].keys()
    assert {row["windows of"] for row in result["results"]} == {"one document", "four documents"}
    # Two to three times as fast on an idle machine; the bound leaves room for a busy one.
    for row in result["results"]:
        assert row["in a batch, samples/s"] > 1.2 * row["one by one, samples/s"], row
    assert "token and document" in capsys.readouterr().out

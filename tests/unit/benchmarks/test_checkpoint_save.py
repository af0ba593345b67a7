"""The benchmark of a save measures each of its parts, and writes what repeats it."""

import json

from benchmarks.checkpoint_save import main


def test_every_part_is_measured(tmp_path, capsys):
    assert main(["--megabytes", "30", "--json", str(tmp_path / "figures.json")]) == 0
    found = json.loads((tmp_path / "figures.json").read_text())
    assert json.loads(capsys.readouterr().out) == found
    assert found["megabytes"] == 30
    parts = found["cpu_seconds_per_gigabyte"]
    assert list(parts) == ["first copy", "copy", "fingerprints", "safetensors", "sha256"]
    assert all(seconds > 0 for seconds in parts.values())
    assert parts["copy"] < parts["fingerprints"] + parts["safetensors"] + parts["sha256"]

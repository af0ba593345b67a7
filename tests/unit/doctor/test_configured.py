"""The disk that a run needs."""

import os

from megatron_glm.doctor.configured import check_disk


def test_two_checkpoints_must_fit(tmp_path):
    output = tmp_path / "not" / "yet" / "there"
    assert check_disk(output, 1000).status == "ok"
    finding = check_disk(output, 10**18)
    assert finding.status == "fail"
    assert finding.value.endswith(f"free in {tmp_path}; 2 checkpoints are 24000000TB")
    assert not output.parent.exists()


def test_a_directory_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    finding = check_disk(tmp_path / "run", 1000)
    assert (finding.status, finding.value) == ("fail", f"{tmp_path} cannot be written")

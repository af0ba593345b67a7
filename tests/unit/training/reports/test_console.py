"""Only the leading process has a console, and a full disk is told in one line."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from megatron_glm.errors import UserError
from megatron_glm.training.reports.console import Console

START = {"kind": "start", "step": 0, "unigram_entropy": {"token": 4.0}}


def config(output):
    return SimpleNamespace(train=SimpleNamespace(output=output, steps=4))


def test_only_the_leading_process_writes(tmp_path, capsys):
    with Console(config(tmp_path), leads=False, start_step=0) as console:
        console.say("nothing")
        console.record(START)
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out == ""


def test_a_run_leaves_metrics_and_a_picture(tmp_path):
    with Console(config(tmp_path), leads=True, start_step=0) as console:
        console.record(START)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loss.png", "metrics.jsonl"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full disk to try")
def test_a_full_disk_is_told_in_one_line(tmp_path, monkeypatch):
    console = Console(config(tmp_path), leads=True, start_step=0)
    monkeypatch.setattr(console._metrics, "_stream", open("/dev/full", "w"))  # noqa: SIM115 - the console closes it
    with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be written \(No space left on device\)"), console:
        console.record(START)


def test_a_picture_that_cannot_be_drawn_does_not_hide_why_the_run_ended(tmp_path, capsys):
    (tmp_path / ".loss.png.tmp").mkdir()
    console = Console(config(tmp_path), leads=True, start_step=0)
    console.record(START)
    with pytest.raises(UserError, match="diverged"), console:
        raise UserError("diverged")
    assert "loss.png: not drawn" in capsys.readouterr().out


def test_a_skipped_step_is_a_line(tmp_path, capsys):
    with Console(config(tmp_path), leads=True, start_step=0) as console:
        console.record(START)
        console.record(
            {"kind": "skip", "step": 12, "samples": 9, "tokens": 9, "loss_scale": 65536.0, "next_loss_scale": 32768.0}
        )
    assert "step 12 skipped: overflow, loss scale 65536 → 32768\n" in capsys.readouterr().out

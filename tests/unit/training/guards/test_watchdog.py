"""A process that makes no progress is told by name, with its stacks, and ends; one that does is left alone."""

import subprocess
import sys
import time

from megatron_glm.training.guards import watchdog as module
from megatron_glm.training.guards.watchdog import Watchdog

CODE = 3


def hang_here(seconds):
    time.sleep(seconds)


def watched(tmp_path, codes, seconds=0.2, **options):
    return Watchdog(seconds, rank=5, directory=tmp_path / "stacks", exit_code=CODE, end=codes.append, **options)


def test_no_progress_writes_the_stacks_and_ends_with_the_code(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "_OTHERS_SECONDS", 0.05)
    codes = []
    with watched(tmp_path, codes) as dog:
        dog.settle()
        dog.doing = "step 7, forward and backward"
        hang_here(0.8)
    assert codes == [CODE]
    text = (tmp_path / "stacks" / "rank_5.txt").read_text()
    assert "rank 5 on " in text
    assert "no progress for 0.2 s, in step 7, forward and backward" in text
    assert "hang_here" in text
    assert capsys.readouterr().err.startswith("error: rank 5 on ")


def test_progress_keeps_it_quiet_and_leaves_nothing_behind(tmp_path):
    codes = []
    with watched(tmp_path, codes, seconds=1.5) as dog:  # a busy machine may keep a process waiting
        dog.settle()
        for _ in range(40):
            time.sleep(0.05)
            dog.mark()
    assert codes == []
    assert not (tmp_path / "stacks").exists()


def test_a_start_and_a_save_may_take_ten_times_as_long(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_OTHERS_SECONDS", 0.0)
    codes = []
    with watched(tmp_path, codes, seconds=0.3) as dog:
        time.sleep(0.6)
        dog.mark()
        dog.settle()
        with dog.patient("the save"):
            time.sleep(0.6)
        assert codes == []
        time.sleep(0.8)
    assert codes == [CODE]


def test_the_next_start_keeps_the_stacks_of_the_last(tmp_path):
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "rank_5.txt").write_text("of the last start")
    with watched(tmp_path, [], seconds=9) as dog:
        dog.mark()
    assert (tmp_path / "stacks" / "rank_5.txt").read_text() == "of the last start"


def test_none_watches_nothing(tmp_path):
    with watched(tmp_path, [], seconds=None) as dog:
        dog.mark()
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_never_gives_back_the_lock_is_ended_too(tmp_path):
    """A regular expression that backtracks for ever holds it, as a hang in a library may."""
    program = f"""
import re
from pathlib import Path
from megatron_glm.training.guards import watchdog
watchdog._OTHERS_SECONDS = watchdog._LOOK_SECONDS = 0.0
with watchdog.Watchdog(1.0, rank=0, directory=Path({str(tmp_path)!r}), exit_code=3) as dog:
    dog.settle()
    dog.mark()
    re.match("(a+)+$", "a" * 60 + "b")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Timeout" in (tmp_path / "rank_0.txt").read_text()


def test_a_directory_that_cannot_be_written_does_not_stop_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "_OTHERS_SECONDS", 0.0)
    (tmp_path / "stacks").write_text("a file in its place")
    codes = []
    with watched(tmp_path, codes) as dog:
        dog.settle()
        time.sleep(0.6)
    assert codes == [CODE]
    assert "no progress" in capsys.readouterr().err

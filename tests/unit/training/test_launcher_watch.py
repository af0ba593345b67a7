"""What a rank depends on, and how it learns of its end."""

import os

import pytest

from megatron_glm.training.launcher_watch import LauncherWatch

LAUNCHED = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}


@pytest.fixture
def proc(tmp_path):
    """A kernel that tells of the parent of this process what the test says."""

    def tell(command, parent):
        place = tmp_path / str(os.getppid())
        place.mkdir(exist_ok=True)
        (place / "cmdline").write_bytes("\0".join(command).encode())
        (place / "stat").write_text(f"{os.getppid()} (a (b) c) S {parent} 1 1 0")
        return tmp_path

    return tell


def test_a_process_that_no_launcher_has_started_depends_on_nobody(proc, monkeypatch):
    watch = LauncherWatch({}, proc=proc(["bash"], 5))
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert not watch.has_ended()


def test_the_end_of_the_parent_is_the_end_of_the_launcher(proc, monkeypatch):
    watch, other = LauncherWatch(LAUNCHED, proc=proc(["torchrun"], 5)), os.getppid() + 1
    assert not watch.has_ended()
    monkeypatch.setattr(os, "getppid", lambda: other)
    assert watch.has_ended()


def test_of_deepspeed_both_launchers_count_and_of_torchrun_not_its_shell(proc):
    deepspeed = ["python", "-u", "-m", "deepspeed.launcher.launch", "--world_info=x"]
    watch = LauncherWatch(LAUNCHED, proc=proc(deepspeed, 5))
    assert not watch.has_ended()
    proc(deepspeed, 1)
    assert watch.has_ended()
    watch = LauncherWatch(LAUNCHED, proc=proc(["torchrun"], 5))
    proc(["torchrun"], 1)
    assert not watch.has_ended()


def test_without_a_proc_file_system_the_parent_is_watched(tmp_path):
    assert not LauncherWatch(LAUNCHED, proc=tmp_path / "none").has_ended()

"""A lock keeps a second process out, and ends with the process that holds it."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from megatron_glm.files import atomic_directory
from megatron_glm.locking import exclusive, is_held

REPOSITORY = Path(__file__).resolve().parents[2]
HOLD = (
    "import sys, pathlib; from megatron_glm.locking import exclusive\n"
    "with exclusive(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture
def holder(tmp_path):
    """Another process that holds `tmp_path/lock` until its input ends."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process


def test_another_process_is_kept_out_until_the_block_ends(tmp_path, holder):
    path = tmp_path / "lock"
    for _ in range(2):  # a refused one must not take the file away either
        holder_told = f"another process is writing here: process {holder.pid} on {socket.gethostname()} since 20"
        with pytest.raises(BlockingIOError, match=holder_told), exclusive(path):
            pass
    holder.communicate()
    assert not path.exists()
    with exclusive(path):
        assert path.exists()
    assert not path.exists()


def test_what_a_killed_process_held_is_free(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "lock").exists()
    with exclusive(tmp_path / "lock"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_whether_a_lock_is_held_can_be_asked_without_taking_it(tmp_path):
    path = tmp_path / "lock"
    assert not is_held(path)
    with exclusive(path):
        assert is_held(path)
    assert not is_held(path)
    path.write_text("left by a process that was killed")
    assert not is_held(path)
    assert path.exists()


def test_a_failing_block_gives_the_lock_back(tmp_path):
    with pytest.raises(RuntimeError), exclusive(tmp_path / "lock"):
        raise RuntimeError
    with exclusive(tmp_path / "lock"):
        pass


def test_never_two_at_once_while_the_file_comes_and_goes(tmp_path):
    inside, most, entered = [], [], []

    def contend():
        for _ in range(300):
            try:
                with exclusive(tmp_path / "lock"):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
                    entered.append(1)
            except BlockingIOError:
                continue

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(entered) >= 300 / 4
    assert list(tmp_path.iterdir()) == []


def test_a_directory_has_one_writer(tmp_path):
    path = tmp_path / "d"
    with atomic_directory(path) as first:
        (first / "kept").write_bytes(b"")
        with pytest.raises(BlockingIOError), atomic_directory(path):
            pass
    assert [entry.name for entry in path.iterdir()] == ["kept"]
    assert list(tmp_path.iterdir()) == [path]

"""The file layer's log is what the system was asked for, as strace sees it: no operation goes past it unseen."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
CALLS = (
    *("openat", "creat", "write", "pwrite64", "writev", "fsync", "fdatasync", "rename", "renameat", "renameat2"),
    *("unlink", "unlinkat", "rmdir", "mkdir", "mkdirat", "truncate", "ftruncate", "link", "linkat", "symlink"),
    *("symlinkat", "copy_file_range", "sendfile", "splice", "mmap", "stat", "newfstatat"),
)
ON_WHAT_IS_OPEN = {"write", "pwrite64", "writev", "fsync", "fdatasync", "ftruncate", "mmap"}
NAMES = {"mkdir": "make_directory", "rename": "rename", "unlink": "unlink", "rmdir": "remove_directory"}

# Saves through a file layer that logs, deletes what is expendable, and writes the log down.
PROGRAM = """
import json, os, sys
from pathlib import Path
sys.path[:0] = [{repository!r}, {repository!r} + "/kernels"]
from tests.unit.checkpoint.conftest import Checkpoints
from tests.unit.checkpoint.file_faults import NEVER, dies_at
from megatron_glm.checkpoint.retention import Retention, remove_expendable
directory = Path(sys.argv[1])
for step in (1, 2, 3):
    Checkpoints.save(directory, step)
left = directory / ".step_00000003.tmp" / "tokenizer"
left.mkdir(parents=True)
(left / "half").write_bytes(b"x")
files = dies_at(NEVER)
os.path.exists("/begin of the save")
Checkpoints.save(directory, 3, files=files)
remove_expendable(directory, run_id="run", retention=Retention(last=2), files=files)
os.path.exists("/end of the save")
shown = lambda argument: str(argument.name if hasattr(argument, "write") else argument)
log = [[name, *map(shown, arguments[:2 if name == "rename" else 1])] for name, *arguments in files.log]
Path(sys.argv[2]).write_text(json.dumps(log))
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The directory, the log of the file layer, and the lines of strace between the marks."""
    directory = tmp_path_factory.mktemp("traced")
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    command = ["strace", "-f", "-y", "-s", "300", "-o", directory / "trace", "-e", f"trace={','.join(CALLS)}"]
    program = [sys.executable, "-c", PROGRAM.format(repository=str(REPOSITORY)), directory / "runs", directory / "log"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *program], capture_output=True, text=True, check=False, env=environment)
    if "ptrace" in done.stderr.lower():
        pytest.skip("processes cannot be traced here")
    assert done.returncode == 0, done.stderr
    lines = list(whole_calls((directory / "trace").read_text().splitlines()))
    marks = [number for number, line in enumerate(lines) if re.search("/(begin|end) of the save", line)]
    return directory / "runs", json.loads((directory / "log").read_text()), lines[slice(*marks)]


def whole_calls(lines: Iterable[str]) -> Iterator[str]:
    """The calls of all threads, one a line, in the order of their ends; strace may write one in two parts."""
    begun: dict[str, str] = {}
    for line in lines:
        thread, text = line.split(maxsplit=1)
        if text.startswith(("+++", "---")):  # the end of a thread, a signal
            continue
        if text.endswith("<unfinished ...>"):
            begun[thread] = text.removesuffix("<unfinished ...>")
        else:
            resumed = re.match(r"<\.\.\. \w+ resumed>", text)
            yield begun.pop(thread) + text[resumed.end() :] if resumed else text


def operations(directory: Path, lines: list[str]) -> list[list[str]]:
    """The file layer's operations that the system calls below a directory amount to."""
    found: list[list[str]] = []
    for line in lines:
        call = re.search(r"(\w+)\(", line)[1]
        paths, held = re.findall(r'"([^"]*)"', line), re.findall(r"<([^<>]*)>", line)
        places = held[:1] if call in ON_WHAT_IS_OPEN else paths
        if " = -1 " in line or not any(place.startswith(str(directory)) for place in places):
            continue
        if call in ("stat", "newfstatat") or (call == "openat" and "O_CREAT" not in line):
            continue
        if call == "mmap":  # for reading; another would write past the layer
            assert "MAP_SHARED" not in line or "PROT_WRITE" not in line
        elif call == "openat":
            assert "O_EXCL" in line
            found.append(["open", paths[0]])
        elif call == "write":
            if found[-1] != ["write", held[0]]:  # in as many calls as it likes
                found.append(["write", held[0]])
        elif call == "fsync":
            found.append(["sync" if ["open", held[0]] in found else "sync_directory", held[0]])
        elif call == "unlinkat":
            found.append(["remove_directory" if "AT_REMOVEDIR" in line else "unlink", paths[0]])
        else:
            found.append([NAMES[call], *paths])
    return found


def test_the_log_is_the_system_s_own(traced):
    directory, log, lines = traced
    found = operations(directory, lines)
    assert found == log
    assert len(log) > 40
    assert {name for name, *_ in log} == {*NAMES.values(), "open", "write", "sync", "sync_directory"}

"""The processes below this one, as Linux tells them, and which of them are ranks."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress

from megatron_glm.errors import ConfigError
from megatron_glm.training.launcher_watch import PROC, parent_of
from megatron_glm.training.launchers import launch_variables

_LOOK_SECONDS = 0.02
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of every process below whose own parent ends: none is lost. Linux only."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Between fork and exec: SIGTERM to the new process when this one ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """The living processes below `pid`, parents first."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":  # dead already
                    children[int(parent)].append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        found += children[todo[0]]
        todo += children[todo.pop(0)]
    return found


def ranks_below(pid: int) -> list[int]:
    """The processes below `pid` that a launcher has given a rank; not what these have started in turn."""
    tree = descendants(pid)
    ranks = {process for process in tree if _has_rank(process)}
    return [process for process in tree if process in ranks and parent_of(process) not in ranks]


def kill_all_below(pid: int) -> None:
    """SIGKILL to every process below `pid`, until there is none that could start another."""
    while tree := descendants(pid):
        for process in tree:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)  # the dead are not looked at; their parent learns of their ends by `reap`


def reap() -> dict[int, int]:
    """Take the ends of all children that have ended: their exit codes, negative for a signal."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def _has_rank(pid: int) -> bool:
    with suppress(ConfigError):  # a part of a launcher's variables makes no rank
        return bool(launch_variables(_environment(pid)))
    return False


def _environment(pid: int) -> Mapping[str, str]:
    try:
        text = (PROC / str(pid) / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)

"""Whether what has started this process is still there.

`deepspeed` starts one launcher a machine, which starts the ranks. SIGTERM ends the first and leaves the others; a
launcher that is killed leaves its ranks. So a rank looks for its launcher, and for what has started DeepSpeed's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from megatron_glm.training.launchers import launch_variables

PROC = Path("/proc")  # where Linux tells of processes
_NODE_LAUNCHER = b"deepspeed.launcher.launch"


class LauncherWatch:
    """Remembers the processes that this one depends on; none where nothing has launched it.

    A process that a person starts in a shell outlives the shell, as with `nohup`. On several machines each rank
    watches the launcher of its own machine, and of it the end of ssh.

    Args:
        proc: where the kernel tells of processes; without it the parent alone is watched.
    """

    def __init__(self, environ: Mapping[str, str], *, proc: Path = PROC):
        self._proc = proc
        self._parent = os.getppid() if launch_variables(environ) else None
        self._grandparent = None
        if self._parent is not None and _NODE_LAUNCHER in self._command(self._parent):
            self._grandparent = parent_of(self._parent, self._proc)

    def has_ended(self) -> bool:
        """Whether one of them has ended since."""
        if self._parent is None:
            return False
        if os.getppid() != self._parent:
            return True
        return self._grandparent is not None and parent_of(self._parent, self._proc) != self._grandparent

    def _command(self, pid: int) -> bytes:
        try:
            return (self._proc / str(pid) / "cmdline").read_bytes()
        except OSError:
            return b""


def parent_of(pid: int, proc: Path = PROC) -> int | None:
    """The parent of a process; None where there is no such process, or nothing tells of it."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[1])  # a command's name may hold spaces and brackets

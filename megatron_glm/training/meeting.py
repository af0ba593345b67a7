"""Waiting for the other processes of a run: long, but not in silence, nor behind a launcher that has gone.

Machines may start minutes apart, so a process has patience. But an address with a wrong digit looks the same to it.
And where one machine cannot be reached and the launcher gives up, what waits elsewhere is in the way of the next start.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from megatron_glm.command import EXIT_MACHINE, tell
from megatron_glm.errors import RankError
from megatron_glm.training.launcher_watch import LauncherWatch

_LOOK_SECONDS = 0.5
_SILENT_SECONDS = 30.0
_LOOPBACK = "remote=[127."  # of gloo: the other side has told an address that leads back to this machine


@contextmanager
def meeting(
    environ: Mapping[str, str],
    *,
    silent_seconds: float = _SILENT_SECONDS,
    watch: LauncherWatch | None = None,
    end: Callable[[int], object] = os._exit,
) -> Iterator[None]:
    """The block in which the processes meet.

    Args:
        environ: with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
        silent_seconds: after so many the first process of each machine says where it waits, once.
        watch: of this process's launcher.
        end: called with the exit code when the launcher has ended; the block is left by nobody then.

    Raises:
        RankError: the meeting has failed; one line.
    """
    over = threading.Event()
    waiting = threading.Thread(
        target=_wait, args=(environ, over, silent_seconds, watch or LauncherWatch(environ), end), daemon=True
    )
    waiting.start()
    try:
        yield
    except RuntimeError as error:  # the store's errors have a kind of their own, gloo's have none
        raise _failure(environ, str(error).splitlines()[0]) from error
    finally:
        over.set()
        waiting.join()


def _wait(
    environ: Mapping[str, str],
    over: threading.Event,
    silent_seconds: float,
    watch: LauncherWatch,
    end: Callable[[int], object],
) -> None:
    began, silent = time.monotonic(), environ["LOCAL_RANK"] == "0"
    here = f"rank {environ['RANK']} on {socket.gethostname()}"
    while not over.wait(min(_LOOK_SECONDS, silent_seconds)):
        if watch.has_ended():
            tell(f"error: {here}: its launcher has ended before all processes had met", stream=sys.stderr)
            end(EXIT_MACHINE)
            return
        if silent and time.monotonic() - began > silent_seconds:
            silent = False
            tell(
                f"warning: {here} has waited {silent_seconds:g} s at {_place(environ)} for all {environ['WORLD_SIZE']}"
                f" processes; machines that do not say this are missing; {_advice(environ)}",
                stream=sys.stderr,
            )


def _failure(environ: Mapping[str, str], reason: str) -> RankError:
    advice, of_machine = _advice(environ), True
    if "EADDRINUSE" in reason:
        advice, of_machine = "another job uses this port; choose another, with --master_port or MASTER_PORT", False
    elif "Unable to find address for" in reason:
        advice, of_machine = (
            "GLOO_SOCKET_IFNAME names no network interface of this machine; `ip -br a` lists them",
            False,
        )
    elif _LOOPBACK in reason and not environ["MASTER_ADDR"].startswith(("127.", "localhost")):
        advice = (
            "a machine listens where only it can reach itself: set GLOO_SOCKET_IFNAME to the interface by which all"
            " reach each other (docs/launching.md)"
        )
    return RankError(
        f"rank {environ['RANK']}: the processes do not meet at {_place(environ)} ({reason}); {advice}",
        of_machine=of_machine,
    )


def _place(environ: Mapping[str, str]) -> str:
    return f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"


def _advice(environ: Mapping[str, str]) -> str:
    address = environ["MASTER_ADDR"]
    return f"see that {address} is the host of rank 0 and that all machines reach each other (docs/launching.md)"

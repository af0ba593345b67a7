"""What to do when a launcher has ended: start again, or end with which code."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_glm.command import EXIT_USER_ERROR

_SIGNAL = 128  # the shell's way to say which signal ended a process
_LONGEST_PAUSE = 300.0  # seconds
_SIGNALS = 64
_SSH_LOST = 255  # of ssh itself: it could not connect, or the connection broke


@dataclass(frozen=True)
class Ended:
    """One start of the run, after all of its processes have ended.

    Attributes:
        code: of the launcher, negative for the signal that ended it.
        well: whether the run itself has said that it ended well: finished, or stopped by someone's wish.
        wish: number of the signal by which this supervisor was told to stop, if it was.
        stop_file: whether one lies there that nobody has obeyed.
        progress: whether there is a newer checkpoint than when it began.
    """

    code: int
    well: bool
    wish: int | None
    stop_file: bool
    progress: bool


@dataclass(frozen=True)
class Restart:
    """Start again after so many seconds; `number` counts the starts in a row without a newer checkpoint."""

    number: int
    pause: float


@dataclass(frozen=True)
class Finish:
    """End with this exit code, and say why the run is not started again."""

    code: int
    why: str


def exit_code(code: int) -> int:
    """A launcher's end as the shell would tell it.

    DeepSpeed hands on the -9 of a killed rank as an exit code, which the system cuts to 247; the shell says 137.
    """
    if code < 0:
        return _SIGNAL - code
    return _SIGNAL + 256 - code if 256 - _SIGNALS <= code != _SSH_LOST else code


def decide(ended: Ended, *, fruitless: int, restarts: int, backoff: float) -> Restart | Finish:
    """What follows.

    Args:
        fruitless: restarts in a row so far that have led to no newer checkpoint.
        restarts: how many of them are allowed.
        backoff: seconds before the first; each in a row doubles them, up to five minutes.
    """
    code = exit_code(ended.code)
    if ended.well:
        return Finish(0, "it ended well")  # whatever the launcher says: DeepSpeed's says 1 after a SIGTERM
    if ended.wish is not None:
        return Finish(_SIGNAL + ended.wish, "its end was wished; what came after its newest checkpoint is lost")
    # A launcher that was killed, or whose ranks stopped since it had ended, may say 0: nobody has wished the end.
    if code == EXIT_USER_ERROR:
        return Finish(code, "it cannot go on as it is: its line `error: …` says why")
    if ended.stop_file:
        return Finish(code, "the file `stop` lies in its output; remove it to start again")
    number = 1 if ended.progress else fruitless + 1
    if number > restarts:
        return Finish(code or 1, f"{number} starts in a row have led to no newer checkpoint (--restarts {restarts})")
    return Restart(number, min(_LONGEST_PAUSE, backoff * 2 ** (number - 1)))

"""How every command of the project starts and ends: `--debug`, one-line errors, exit codes."""

from __future__ import annotations

import argparse
import io
import os
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from megatron_glm.errors import UserError, is_of_machine

EXIT_USER_ERROR = 2  # argparse uses the same code for a wrong flag
EXIT_NO_PROGRESS = 3
EXIT_MACHINE = 4
EXIT_INTERRUPTED = 130
EXIT_NO_READER = 141  # 128 + SIGPIPE, as of any program whose output nobody reads to its end
_LONGEST_LINE = 4000  # characters


def run_command(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], int | None],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse `argv`, call `run`, and turn what a user is to be told into one line on stderr; returns the exit code."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    args = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal cannot show is no reason to end with a traceback
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return run(args) or 0
    except UserError as error:
        if args.debug:
            raise
        tell(f"error: {_line(str(error))}", stream=sys.stderr)
        return exit_code_of(error)
    except KeyboardInterrupt:
        tell("interrupted", stream=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left: `glm show-sample … | head`
        if not _has_no_reader(sys.stdout):
            raise
        _lead_nowhere(sys.stdout)
        return EXIT_NO_READER


def tell(text: str, *, stream: TextIO | None = None) -> None:
    """Print a line that a run can do without: it is lost where nobody reads it any more, or a log's disk is full.

    Args:
        stream: default: stdout.
    """
    stream = stream or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        with suppress(OSError):
            _lead_nowhere(stream)
    except OSError:
        pass


def _has_no_reader(stream: TextIO) -> bool:
    """Whether the stream is a pipe that is closed at its other end."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except OSError:  # no file at all
        return False


def _lead_nowhere(stream: TextIO) -> None:
    """What is still to be written goes to no one; else Python would try again at its end, and end with 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def exit_code_of(error: UserError) -> int:
    """With which a command ends: a machine's fault may be over when the same command is started again."""
    return EXIT_MACHINE if is_of_machine(error) else EXIT_USER_ERROR


def _line(text: str) -> str:
    """One that a person can read: a file may be wrong by a megabyte in one place."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} … ({len(line) - _LONGEST_LINE} more)"


def printable(text: str) -> str:
    """The text with escapes for all that moves a terminal's cursor or rings its bell: files may hold anything."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def count_or_none(text: str) -> int:
    """A count of 0 or more, as argparse reads it."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a count of 0 or more")
    return value

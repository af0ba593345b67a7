"""How every command of the project starts and ends: `--debug`, one-line errors, exit codes."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence

from megatron_glm.errors import UserError

EXIT_USER_ERROR = 2  # argparse uses the same code for a wrong flag
EXIT_NO_PROGRESS = 3
EXIT_INTERRUPTED = 130
_LONGEST_LINE = 4000  # characters


def run_command(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], int | None],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse `argv`, call `run`, and turn a user's mistake into one line on stderr; returns the exit code."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    args = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal cannot show is no reason to end with a traceback
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return run(args) or 0
    except UserError as error:
        if args.debug:
            raise
        print(f"error: {_line(str(error))}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left: `glm show-sample … | head`
        sys.stderr.close()
        return 0


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

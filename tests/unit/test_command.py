"""How a command ends: one line that a person can read, whatever a file has put into it."""

import argparse
import errno
import os
import signal
import subprocess
import sys

import pytest

from megatron_glm.command import EXIT_MACHINE, EXIT_NO_READER, EXIT_USER_ERROR, printable, run_command
from megatron_glm.errors import DataError


def told(capsys, message):
    def run(args):
        raise DataError(message)

    assert run_command(argparse.ArgumentParser(), run, []) == EXIT_USER_ERROR
    return capsys.readouterr().err


def test_a_machine_that_fails_has_an_exit_code_of_its_own(capsys):
    def run(args):
        try:
            raise OSError(errno.EIO, "Input/output error")
        except OSError as error:
            raise DataError("corpus.bin: cannot be read") from error

    assert run_command(argparse.ArgumentParser(), run, []) == EXIT_MACHINE == 4
    assert capsys.readouterr().err == "error: corpus.bin: cannot be read\n"


def test_an_error_is_one_line(capsys):
    assert told(capsys, "a file:\n  is\twrong") == "error: a file: is wrong\n"


@pytest.mark.parametrize(("name", "shown"), [("\x1b[2Jx", r"\x1b[2Jx"), ("a\x07", r"a\x07"), ("é\ud800", "é\\ud800")])
def test_what_a_file_says_moves_no_cursor_and_ends_no_command(capsys, name, shown):
    assert told(capsys, f"{name}: is wrong") == f"error: {shown}: is wrong\n"
    assert printable(name) == shown


def test_a_wrong_value_of_a_megabyte_is_cut(capsys):
    line = told(capsys, "x" * 1_000_000)
    assert len(line) < 5000
    assert line.endswith("… (996000 more)\n")


def test_text_that_the_terminal_cannot_show_is_escaped(capsys):
    def run(args):
        print("a \ud800 b")

    assert run_command(argparse.ArgumentParser(), run, []) == 0
    assert capsys.readouterr().out == "a \\ud800 b\n"


PRINTS = """
import argparse, sys
from megatron_glm.command import run_command, tell

def run(args):
    for number in range(3):
        {line}

sys.exit(run_command(argparse.ArgumentParser(), run, []))
"""


def started(line, output):
    """A command that says something three times, as a process with such a stdout."""
    command = [sys.executable, "-c", PRINTS.format(line=line)]
    return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)


@pytest.fixture
def unread():
    """A pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def test_a_command_whose_reader_has_left_ends_as_others_do_and_without_a_word(unread):
    ended = started("print(number, flush=True)", unread)
    assert (ended.returncode, ended.stderr) == (EXIT_NO_READER, "")
    assert EXIT_NO_READER == 128 + signal.SIGPIPE


def test_a_run_goes_on_when_nobody_reads_what_it_tells(unread):
    ended = started("tell(str(number)) or print(number, file=sys.stderr)", unread)
    assert (ended.returncode, ended.stderr) == (0, "0\n1\n2\n")


def test_a_run_goes_on_when_the_disk_of_its_log_is_full():
    with open("/dev/full", "w") as full:
        ended = started("tell(str(number)) or print(number, file=sys.stderr)", full)
    assert ended.stderr.startswith("0\n1\n2\n")


def test_another_pipe_that_breaks_is_no_reader_that_has_left():
    def run(args):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        run_command(argparse.ArgumentParser(), run, [])

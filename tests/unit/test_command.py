"""How a command ends: one line that a person can read, whatever a file has put into it."""

import argparse

import pytest

from megatron_glm.command import EXIT_USER_ERROR, printable, run_command
from megatron_glm.errors import DataError


def told(capsys, message):
    def run(args):
        raise DataError(message)

    assert run_command(argparse.ArgumentParser(), run, []) == EXIT_USER_ERROR
    return capsys.readouterr().err


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

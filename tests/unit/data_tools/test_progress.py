"""Progress is a bar on a terminal and plain lines in a log; either tells speed and time left."""

import io
from types import SimpleNamespace

import pytest

from data_tools import progress
from data_tools.progress import ProgressDisplay
from data_tools.units import Amount


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    times = iter([0.0, 20.0, 21.0, 40.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(times, 40.0)))


def test_a_log_gets_a_line_now_and_then():
    log = io.StringIO()
    with ProgressDisplay(100, log) as display:
        display.update(Amount(25, 50_000_000, 10_000_000))
    assert log.getvalue() == "tokenizing 25%  2.5 MB/s  0.50M tok/s  eta 60 s\n"


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with ProgressDisplay(100, terminal) as display:
        display.update(Amount(25, 50_000_000, 10_000_000))
    assert "25%" in terminal.getvalue()
    assert "MB/s" in terminal.getvalue()


def test_a_phase_without_tokens_is_named_and_shows_none():
    log = io.StringIO()
    with ProgressDisplay(100, log, phase="hashing") as display:
        display.update(Amount(25, 50_000_000))
    assert log.getvalue() == "hashing 25%  2.5 MB/s  eta 60 s\n"

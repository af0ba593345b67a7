"""What `glm generate` prints."""

import io

from megatron_glm.generation import generate
from megatron_glm.generation.text import Filled

FILLED = Filled("the cat sat", pieces=("cat",), spans=((3, 7),))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_plain_text_goes_into_a_file(capsys):
    generate._show(FILLED)
    assert capsys.readouterr().out == "the cat sat\n"


def test_what_was_filled_in_stands_out_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    generate._show(FILLED)
    assert terminal.getvalue() == "the\x1b[1;32m cat\x1b[0m sat\n"

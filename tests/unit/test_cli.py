"""The `glm` command: answers at once, and loads a part only when it is named."""

import subprocess
import sys
import time

import pytest

from megatron_glm import __version__
from megatron_glm.cli import COMMANDS, main

HEAVY = ("torch", "pydantic", "transformers", "numpy")


def _glm(*args):
    """Run glm in a fresh interpreter: its result, the heavy modules it has loaded, and the seconds it took."""
    program = (
        "import sys\nfrom megatron_glm.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr.strip(), time.perf_counter() - started


def test_help_names_every_command_in_half_a_second_without_loading_torch():
    _glm("--help")  # compiles the modules
    stdout, loaded, seconds = min((_glm("--help") for _ in range(3)), key=lambda answer: answer[2])
    assert all(command in stdout for command in COMMANDS)
    assert loaded == "[]"
    assert seconds < 0.5


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_loads_no_torch(command):
    stdout, loaded, _ = _glm(command, "--help")
    assert f"usage: glm {command}" in stdout
    assert loaded == "[]"


def test_says_its_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"megatron_glm {__version__}\n"


def test_an_unknown_command_is_an_error_that_names_the_known_ones(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["exprot"])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert all(command in message for command in COMMANDS)


def test_a_users_mistake_is_one_line_and_exit_code_2(capsys, tmp_path):
    code = main(["generate", "--model", str(tmp_path / "none"), "--text", "a [MASK]"])
    assert code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: no release in")
    assert message.count("\n") == 1

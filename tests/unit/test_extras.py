"""What an error says to install is what setup.py can install, with the versions that were tested."""

import ast
from pathlib import Path

from megatron_glm.extras import install_command

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("megatron_glm", "data_tools", "launch_scripts", "benchmarks", "kernels")


def calls(name):
    for file in (path for part in SOURCES for path in (REPOSITORY / part).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                yield node


def extras():
    tree = ast.parse((REPOSITORY / "setup.py").read_text(encoding="utf-8"))
    (found,) = (node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "extras_require")
    return set(ast.literal_eval(found))


def test_the_command_is_that_of_the_readme():
    assert install_command("release") in (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_every_extra_that_is_named_exists():
    named = {ast.literal_eval(call.args[0]) for call in calls("install_command")}
    assert len(named) >= 6
    assert named <= extras()


def test_nobody_is_told_to_install_an_extra_by_another_command():
    told = [
        path for part in SOURCES for path in (REPOSITORY / part).rglob("*.py") if "megatron_glm[" in path.read_text()
    ]
    assert [path.name for path in told] == ["preprocess_options.py"]  # which names the extra and no command

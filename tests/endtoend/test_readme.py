"""Every command of the README runs, and prints what the README shows; the long ones at toy size."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_glm.training.launchers import free_port
from tests.endtoend.toy_demo import CORPUS, RUN, SETTINGS, like_a_clone

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
# What takes minutes, and how it is asked for at toy size: the whole command, or a part of it. The demo has run already.
DEMO = "make demo"
TOY = {
    "make test": "make --dry-run test",
    "make test-all": "make --dry-run test-all",
}
# What says the same whatever the corpus and the model are; of other output, each line's first word stays.
EXACT = ("python pretrain_glm.py",)
TOY_PARTS = {
    "data_tools.sample_corpus": " ".join(CORPUS),
    "data_tools.train_tokenizer": "--vocab-size 1000",  # the last one counts
    "pretrain_glm.py": " ".join([*SETTINGS, "train.precision=fp32"]),
}

pytestmark = pytest.mark.distributed


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands():
    """Each command of the console blocks with the lines that are shown below it."""
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.replace("\\\n", " ").splitlines()
            yield " ".join(command.split()), [line for line in shown if line.strip() and line.strip() != "…"]


@pytest.fixture(scope="module")
def clone(tmp_path_factory, toy_demo):
    """A directory like a clone in which the demo has run, where the commands may write."""
    directory = like_a_clone(tmp_path_factory.mktemp("readme") / "clone")
    shutil.copytree(toy_demo.kept, directory / RUN)
    return directory


def run(directory, command):
    binaries = directory / ".bin"
    if not binaries.exists():  # `python` and `glm` as an activated environment has them
        binaries.mkdir()
        for name, arguments in (("python", ""), ("glm", "-m megatron_glm.cli")):
            (binaries / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
            (binaries / name).chmod(0o755)
    launcher = binaries / "deepspeed"  # at a port of its own: other tests may run at the same time
    launcher.write_text(
        f'#!/bin/sh\nexec "{Path(sys.executable).with_name("deepspeed")}" --master_port {free_port()} "$@"\n'
    )
    launcher.chmod(0o755)
    path = os.pathsep.join([str(binaries), str(Path(sys.executable).parent), os.environ["PATH"]])
    python_path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "kernels")])
    environment = os.environ | {"PATH": path, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    environment["HF_MODULES_CACHE"] = str(directory / "modules")
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )
    assert result.returncode == 0, f"$ {command}\n{result.stdout[-3000:]}"
    return result.stdout


def toy(command):
    if command in TOY:
        return TOY[command]
    if command.startswith(EXACT):
        return command
    return next((f"{command} {options}" for name, options in TOY_PARTS.items() if name in command), command)


def skeleton(line):
    """A line without its figures and its layout."""
    return re.sub(r"[-+]?\d[\d.,e+-]*[kMGT%]?", "#", " ".join(line.split()))


def test_every_command_runs_and_prints_the_lines_that_are_shown(clone, toy_demo):
    found = 0
    for command, shown in commands():
        found += 1
        at_toy_size = toy(command)
        output = toy_demo.output if command == DEMO else run(clone, at_toy_size)
        printed = [skeleton(line) for line in output.splitlines()]
        for line in map(skeleton, shown):
            if command.startswith(EXACT):
                assert line in printed, f"$ {command}: {line!r} is not in {printed}"
            else:
                first = line.split()[0]
                assert any(candidate.startswith(first) for candidate in printed), f"$ {at_toy_size}: {first!r}"
    assert found >= 8


def test_the_python_examples_run_after_the_commands(clone):
    examples = blocks("python")
    assert examples
    for number, example in enumerate(examples):
        (clone / f"example{number}.py").write_text(example)
        run(clone, f"python example{number}.py")


def test_every_file_that_is_linked_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (REPOSITORY / target).exists(), target

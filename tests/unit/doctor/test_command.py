"""`glm doctor` ends early, but with an answer, where a run could not even be imported."""

import json
import subprocess
import sys

import pytest

from megatron_glm.cli import main

PROGRAM = """
import sys
from megatron_glm.doctor import packages
found = packages.installed
packages.installed = lambda name: None if name == "deepspeed" else found(name)
from megatron_glm.cli import main
code = main(["doctor", *sys.argv[1:]])
assert not {"torch", "deepspeed"} & sys.modules.keys()
sys.exit(code)
"""


def test_a_missing_package_is_told_before_anything_imports_it():
    done = subprocess.run([sys.executable, "-c", PROGRAM, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    checks = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["deepspeed"]["value"] == "not installed"
    assert checks["torch"]["status"] == "ok"


@pytest.mark.parametrize("argument", ["configs/demo.yaml", "train.steps=5"])
def test_what_is_for_a_configuration_is_not_passed_over_without_one(argument, capsys):
    assert main(["doctor", argument]) == 2
    assert capsys.readouterr().err == f"error: '{argument}' is for a configuration; name that file with --config\n"

"""Versions are judged by what setup.py and constraints.txt say."""

import ast
import re
import sys
from pathlib import Path

import pytest

from megatron_glm.doctor import packages
from megatron_glm.doctor.finding import findings_of

REPOSITORY = Path(__file__).resolve().parents[3]


def by_name(findings):
    return {finding.check: finding for finding in findings}


@pytest.fixture
def installed(monkeypatch):
    """Pretends that these versions are installed; None: not there."""

    def pretend(**versions):
        found = packages.installed
        monkeypatch.setattr(packages, "installed", lambda name: versions[name] if name in versions else found(name))

    return pretend


def test_the_requirements_are_those_of_the_installation():
    texts = {
        node.value
        for node in ast.walk(ast.parse((REPOSITORY / "setup.py").read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {*packages.REQUIREMENTS, packages._TRITON} <= texts


def test_the_tested_versions_are_those_that_the_tests_are_pinned_to():
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.M))
    assert {name: pinned[name] for name in packages.TESTED} == packages.TESTED


def test_this_installation_is_well():
    assert {finding.status for finding in packages.check_packages()} <= {"ok", "warn"}


@pytest.mark.parametrize(
    ("found", "status", "value"),
    [
        (None, "fail", "not installed"),
        ("0.9.0", "fail", "0.9.0, needs >=0.19.3"),
        ("0.19.5", "ok", "0.19.5"),
        ("0.20.1", "warn", "0.20.1, tested with 0.19.8"),
    ],
)
def test_a_version_is_judged(installed, found, status, value):
    installed(deepspeed=found)
    finding = by_name(packages.check_packages())["deepspeed"]
    assert (finding.status, finding.value) == (status, value)
    assert ("pip install" in finding.fix) == (status != "ok")


def test_triton_is_needed_on_a_gpu_alone(installed):
    installed(triton=None)
    assert "triton" not in by_name(packages.check_gpu_packages(gpu=False))
    assert by_name(packages.check_gpu_packages(gpu=True))["triton"].status == "fail"


def test_an_apex_that_is_not_nvidia_s_is_found(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "apex", raising=False)
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(tmp_path)
    *_, finding = findings_of("apex", lambda: packages.check_gpu_packages(gpu=False))
    assert (finding.check, finding.status) == ("apex", "fail")
    assert "pip uninstall apex" in finding.value

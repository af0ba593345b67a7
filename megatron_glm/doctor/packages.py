"""Are the installed packages those that the code was written for?

Looked up by their metadata: a package that cannot be imported is named before anything imports it.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from packaging.requirements import Requirement
from packaging.version import Version

from megatron_glm.doctor.finding import Finding
from megatron_glm.training.engines.apex import nvidia_apex

# A part of setup.py's, whose versions the tests run with stand in constraints.txt; a test compares them.
REQUIREMENTS = ("torch>=2.10", "deepspeed>=0.19.3", "numpy>=2.0", "pydantic>=2.7", "safetensors>=0.5")
TESTED = {"torch": "2.13.0", "deepspeed": "0.19.8", "triton": "3.7.1"}
_TRITON = "triton>=3.6"
_PYTHON = Requirement("python>=3.11")


def check_packages() -> Iterator[Finding]:
    """Python and each package that a run imports."""
    yield _judge(_PYTHON, platform.python_version())
    for text in REQUIREMENTS:
        requirement = Requirement(text)
        yield _judge(requirement, installed(requirement.name))


def check_gpu_packages(*, gpu: bool) -> Iterator[Finding]:
    """What only a GPU needs: triton; and apex, which may be missing but not be another's."""
    requirement, found = Requirement(_TRITON), installed("triton")
    if gpu or found:
        yield _judge(requirement, found)
    yield Finding("apex", "ok", "NVIDIA's" if nvidia_apex() else "not installed, not needed")


def installed(name: str) -> str | None:
    """The version of an installed package; None if it is not there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _judge(requirement: Requirement, found: str | None) -> Finding:
    name = requirement.name
    install = f"pip install -c constraints.txt '{requirement}'"
    if found is None:
        return Finding(name, "fail", "not installed", install)
    if not requirement.specifier.contains(found, prereleases=True):
        return Finding(name, "fail", f"{found}, needs {requirement.specifier}", install)
    tested = TESTED.get(name)
    if tested and Version(found).release[:2] != Version(tested).release[:2]:
        return Finding(
            name, "warn", f"{found}, tested with {tested}", f"pip install {name}=={tested}, or run `make test`"
        )
    return Finding(name, "ok", found)

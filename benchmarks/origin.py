"""What a reader of a benchmark's figures needs to repeat them."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PROC = Path("/proc")


def origin(module: str, arguments: Sequence[str], packages: Sequence[str]) -> dict[str, object]:
    """The commit, the command, the versions of `packages` that are installed, and the machine."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "commit": commit.stdout.strip() or "unknown",
        "command": " ".join(["python", "-m", module, *arguments]),
        "versions": {"python": platform.python_version(), **_installed(packages)},
        "machine": {
            "processor": _field("cpuinfo", "model name"),
            "cores": len(os.sched_getaffinity(0)),
            "memory": _field("meminfo", "MemTotal"),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "load before": os.getloadavg()[0],  # processes that wanted a core in the last minute
        },
    }


def _installed(packages: Sequence[str]) -> dict[str, str]:
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _field(file: str, name: str) -> str:
    """The value of the first line `name: value` of a file of /proc."""
    lines = (line.partition(":") for line in (_PROC / file).read_text(encoding="utf-8").splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "unknown")

"""What an installation that is not editable holds."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def code(root: Path, *parts: str) -> set[Path]:
    return {file.relative_to(root) for part in parts for file in (root / part).rglob("*.py")}


def test_an_installation_holds_all_packages_and_the_code_for_releases(tmp_path):
    pytest.importorskip("setuptools")
    command = [sys.executable, "setup.py", "--quiet", "build", "--build-base", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    packages = code(REPOSITORY, "megatron_glm", "data_tools") | code(REPOSITORY / "kernels", "glm_kernels")
    assert Path("megatron_glm/release/templates/modeling_glm.py") in packages
    assert code(tmp_path / "lib", ".") == packages | {Path("pretrain_glm.py")}

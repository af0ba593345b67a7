"""The kernels fit the chips that they are for, in two versions of Triton; shown without either chip.

The figures are published, and are those of the kernels as they are: where a file of the kernels has changed, the
programs are compared, and the heaviest are compiled anew whatever has changed. The slow tests compare and compile all.
Everything happens in processes of their own, without the interpreter.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from benchmarks.kernel_resources import PACKAGES, PAGE, RESULTS, page, written
from glm_kernels.compilation import SHARED_MEMORY

REPOSITORY = Path(__file__).resolve().parents[2]
VERSIONS = ("3.7.1", "3.6.0")


@cache
def environment(version: str) -> dict[str, str]:
    """The variables of a process with this version of Triton and without its interpreter; skips where it is absent."""
    path = [str(REPOSITORY), str(REPOSITORY / "kernels")]
    if version != VERSIONS[0]:
        path.insert(0, str(REPOSITORY / f".triton-{version}"))
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    variables["PYTHONPATH"] = os.pathsep.join(path)
    found = run(["-c", "import triton; print(triton.__version__)"], variables).stdout.strip()
    if found != version:
        pytest.skip(f"Triton {version} is not there, but {found or 'none'} (make triton-{version})")
    return variables


def run(arguments: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments], env=variables, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


def check(version: str, recompiled: int, *options: str) -> None:
    arguments = ["-m", "benchmarks.kernel_resources", "--check", "--recompile", str(recompiled)]
    done = run([*arguments, *options], environment(version))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\npython -m benchmarks.kernel_resources writes them"
    assert "0 differences" in done.stdout


def rows(version: str) -> list[dict]:
    file = RESULTS / f"kernel_resources_triton_{version}.json"
    return json.loads(file.read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("version", ["3.7.1", pytest.param("3.6.0", marks=pytest.mark.slow)])
def test_the_published_figures_are_those_of_todays_kernels(version):
    check(version, recompiled=2)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_compiling_all_of_them_gives_the_published_figures(version):
    check(version, len(rows(version)), "--anew")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_entry_of_the_tile_tables_fits_its_architecture(version):
    assert {(row["package"], row["arch"]) for row in rows(version)} == {
        (package, arch) for package in PACKAGES for arch in SHARED_MEMORY
    }
    for row in rows(version):
        assert row["spill_bytes"] <= 64, row
        assert row["shared_bytes"] <= SHARED_MEMORY[row["arch"]], row
        assert row["warnings"] == [], row


@pytest.mark.parametrize("version", VERSIONS)
def test_products_of_half_precision_run_on_the_tensor_cores_and_those_of_fp32_do_not(version):
    multiplying = [row for row in rows(version) if row["half_dots"]]
    assert {row["package"] for row in multiplying} == {"attention", "embedding"}
    assert all((row["tensor_core_instructions"] > 0) == (row["half_dots"] > 0) for row in rows(version))


def test_the_page_shows_the_published_figures():
    assert PAGE.read_text(encoding="utf-8") == page(written(RESULTS))
    assert tuple(written(RESULTS)) == VERSIONS


PROGRAM = """
import triton
import triton.language as tl
from glm_kernels.compilation import Compilation, compile_for, fingerprint

@triton.jit
def product(a, b, c, steps, stride, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tile = i[:, None] * BLOCK + i[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(steps):
        total = tl.dot(tl.load(a + step * stride + tile), tl.load(b + step * stride + tile), total, PRECISION)
    tl.store(c + tile, total)

def of(kind, block, warps):
    signature = {"a": kind, "b": kind, "c": "*fp32", "steps": "i32", "stride": "i32"}
    constexprs = {"BLOCK": block, "PRECISION": "ieee"}
    return Compilation("product", product, signature, constexprs, {"num_warps": warps}, ("a", "b", "c", "stride"))

for case in (("*bf16", 64, 4), ("*fp32", 32, 4), ("*bf16", 128, 1)):
    print(repr(compile_for(of(*case), "sm_90")))
cases = ("*bf16", 64, 4), ("*bf16", 32, 4), ("*bf16", 64, 8)
hashes = [fingerprint(of(*case), arch) for case in cases for arch in ("sm_80", "sm_90")]
assert len(set(hashes)) == 6, hashes
assert fingerprint(of(*cases[0]), "sm_80") == hashes[0]
"""


def test_spills_and_missed_tensor_cores_would_be_seen(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    done = run([str(file)], environment(VERSIONS[0]))
    assert done.returncode == 0, done.stderr
    half, full, too_large = done.stdout.splitlines()
    assert "half_dots=1" in half
    assert "tensor_core_instructions=0" not in half
    assert "half_dots=0, tensor_core_instructions=0" in full
    assert "spill_bytes=0" in full
    assert "spill_bytes=0" not in too_large


def test_a_kernel_of_the_interpreter_is_refused():
    program = (
        "from glm_kernels.compilation import compile_for\n"
        "from glm_kernels.loss.compilations import compilations\n"
        "compile_for(next(iter(compilations('sm_90'))), 'sm_90')"
    )
    done = run(["-c", program], environment(VERSIONS[0]) | {"TRITON_INTERPRET": "1"})
    assert "decorated under TRITON_INTERPRET; unset it in a process that compiles" in done.stderr

"""What the documentation says of norms and bias + GELU is what was measured, and what is generated today."""

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.left_to_torch.on_cpu import COMPILED, EAGER
from benchmarks.left_to_torch.report import ARCHITECTURES, cpu_table, gpu_table, rows

REPOSITORY = Path(__file__).resolve().parents[4]
PLACE = ("arch", "part", "hidden", "type")


@pytest.fixture(scope="module")
def published():
    return json.loads((REPOSITORY / "benchmarks/results/left_to_torch.json").read_text(encoding="utf-8"))


def test_the_tables_of_the_documentation_are_those_of_the_figures(published):
    page = (REPOSITORY / "docs/performance.md").read_text(encoding="utf-8")
    for line in [*gpu_table(published["gpu"]), *cpu_table(published["cpu"])]:
        assert line in page


@pytest.mark.parametrize(
    ("arch", "part", "hidden", "kind"),
    [
        ("sm_90", "layer norm", 1024, "bf16"),
        *(
            pytest.param(arch, part, hidden, "bf16", marks=pytest.mark.slow)
            for arch in ARCHITECTURES
            for part, hidden in (("bias + GELU", 1024), ("norm, MLP and residual", 4096))
        ),
    ],
)
def test_what_is_generated_today_is_what_was_published(published, arch, part, hidden, kind):
    for package in ("torch", "triton"):
        if version(package).split("+")[0] != published["versions"][package].split("+")[0]:
            pytest.skip(f"the figures are of {package} {published['versions'][package]}")
    todays = rows("on_gpu", ["--arch", arch, "--parts", part, "--hidden", str(hidden), "--types", kind])
    assert [row["direction"] for row in todays] == ["forward", "backward"]
    place = arch, part, hidden, kind
    assert todays == [row for row in published["gpu"] if place == tuple(row[name] for name in PLACE)]


def test_forward_nothing_is_moved_in_vain(published):
    assert {row["arch"] for row in published["gpu"]} == set(ARCHITECTURES)
    for row in published["gpu"]:
        if row["direction"] == "forward":
            assert len(row["launches"]) == (1 if row["matrix_products"] == 0 else 3)
            assert row["moved"] < 1.005 * row["least"]


def test_no_generated_kernel_spills_registers(published):
    kernels = [kernel for row in published["gpu"] for kernel in row["kernels"].values()]
    assert all(kernel["spill_bytes"] == 0 and kernel["warnings"] == [] for kernel in kernels)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_what_a_kernel_by_hand_could_spare_is_what_the_documentation_says(published, arch):
    spared = {
        row["part"]: row["moved"] - row["least"]
        for row in published["gpu"]
        if (row["arch"], row["type"], row["hidden"], row["direction"]) == (arch, "bf16", 1024, "backward")
    }
    norm, layer = spared["layer norm"], spared["layer norm"] + spared["norm, MLP and residual"]
    T, H = 16_384, 1024
    page = (REPOSITORY / "docs/kernels.md").read_text(encoding="utf-8")
    page = " ".join(page.split())
    assert f"could spare {layer / 1e9:.2f} GB in a layer" in page
    assert f"that is {1e3 * layer / 3.35e12:.2f} ms" in page
    assert f"beside {1e3 * 3 * 24 * T * H * H / 989e12:.2f} ms for the layer's matrix products" in page
    assert f"A norm by hand would spare {norm / 1e6:.0f} MB" in page
    assert f"for {2 * 2 * T * H / 1e6:.0f} MB" in page  # the sum written and read once more


def test_on_a_cpu_compiling_gains_nothing_to_speak_of(published):
    for row in published["cpu"]:
        not_compiled, compiled = (row["seconds"][way]["both"] for way in (EAGER, COMPILED))
        if (row["part"], row["type"]) == ("layer norm", "fp32"):
            assert compiled > 2 * not_compiled
        else:
            assert not_compiled / 1.2 < compiled < 1.2 * not_compiled


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_the_part_on_a_cpu_runs():
    found = rows("on_cpu", ["--tokens", "32", "--hidden", "64", "--types", "bf16", "--repeats", "1"])
    assert [row["part"] for row in found] == ["layer norm", "bias + GELU"]
    for row in found:
        assert all(way["forward"] > 0 and way["both"] > 0 for way in row["seconds"].values())
    assert len(list(cpu_table(found))) == 4

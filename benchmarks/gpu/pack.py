"""What a GPU machine without a network may lack, in a directory that travels with the repository.

    python -m benchmarks.gpu.pack [--python 3.12] [--output .gpu_pack]

Wheels of DeepSpeed, pydantic and the others, at the versions of constraints.txt, and the golden data. torch, Triton and
NumPy are the machine's own. `benchmarks/gpu_check.sh` installs of them what is missing there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LARGEST = 64 << 20  # bytes

_SOURCE_ONLY = ("deepspeed",)  # has no wheel in the index; ours is pure Python
_WHEELS = (
    *("einops", "hjson", "msgpack", "packaging", "psutil", "py-cpuinfo", "tqdm", "ninja"),  # of DeepSpeed
    *("pydantic", "pydantic_core", "annotated-types", "typing-inspection", "typing_extensions"),
    *("PyYAML", "rich", "markdown-it-py", "mdurl", "Pygments", "safetensors", "zstandard", "orjson"),
    *("pytest", "iniconfig", "pluggy", "hypothesis", "sortedcontainers"),  # of the tests
    *("matplotlib", "contourpy", "cycler", "fonttools"),  # of the plots
    *("kiwisolver", "pillow", "pyparsing", "python-dateutil"),
)
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="version of Python on the machine")
    parser.add_argument("--output", type=Path, default=REPOSITORY / ".gpu_pack", help="is replaced")
    parser.add_argument("--golden", type=Path, default=_golden(), help="golden data of the original code")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=args.output.parent) as folder:
        made = Path(folder) / "pack"
        wheels(made / "wheels", args.python)
        if args.golden.is_dir():
            shutil.copytree(args.golden, made / "shared" / "golden", copy_function=shutil.copyfile)
        size = sum(file.stat().st_size for file in made.rglob("*") if file.is_file())
        if size > LARGEST:
            parser.error(f"{args.output}: {size >> 20} MB, and {LARGEST >> 20} MB may travel")
        shutil.rmtree(args.output, ignore_errors=True)
        made.rename(args.output)
    print(f"{args.output}: {size / 1e6:.0f} MB")
    return 0


def wheels(directory: Path, python: str) -> None:
    """Download the wheels, and build those that there are none of."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    versions = pinned()
    # Its setup asks torch for its version, which an isolated build would download.
    built = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory)]
    subprocess.run([*pip, *built, *_named(_SOURCE_ONLY, versions)], check=True, env=os.environ | {"DS_BUILD_OPS": "0"})
    found = ["download", "--no-deps", "--only-binary=:all:", "--python-version", python, "--dest", str(directory)]
    platforms = [f"--platform={name}" for name in _PLATFORMS]
    subprocess.run([*pip, *found, *platforms, *_named(_WHEELS, versions)], check=True)


def pinned() -> dict[str, str]:
    """The lines of constraints.txt by the name of the package, as the index compares names."""
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {canonical(line.split("==")[0]): line for line in lines if "==" in line}


def canonical(name: str) -> str:
    """A package's name as the index compares them."""
    return name.lower().replace("_", "-").replace(".", "-")


def _named(names: Sequence[str], versions: dict[str, str]) -> Iterator[str]:
    return (versions[canonical(name)] for name in names)


def _golden() -> Path:
    return Path(os.environ.get("GLM_SHARED") or REPOSITORY.parent / "shared") / "golden"


if __name__ == "__main__":
    raise SystemExit(main())

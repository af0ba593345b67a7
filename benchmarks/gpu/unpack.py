"""Install from a pack what this environment lacks, and nothing that it has.

    python -m benchmarks.gpu.unpack PACK SITE

SITE is a directory for the end of PYTHONPATH. pip needs no network for it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path, help="as python -m benchmarks.gpu.pack makes it")
    parser.add_argument("site", type=Path, help="directory to install into")
    args = parser.parse_args(argv)
    missing = [wheel for wheel in sorted((args.pack / "wheels").glob("*.whl")) if not is_installed(wheel)]
    if missing:
        install = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target", str(args.site)]
        if subprocess.run([sys.executable, "-m", "pip", *install, *map(str, missing)], check=False).returncode:
            here = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise SystemExit(
                f"error: {args.pack} does not fit this Python {here}; make it with "
                f"`python -m benchmarks.gpu.pack --python {here}`"
            )
    print(f"installed from {args.pack}: {' '.join(wheel.name.split('-')[0] for wheel in missing) or 'nothing'}")
    return 0


def is_installed(wheel: Path) -> bool:
    """Whether the package of a wheel is there, in whatever version."""
    try:
        version(wheel.name.split("-")[0])
    except PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())

"""Whether this machine can run the GPU check at all, said in one line before minutes are spent.

python -m benchmarks.gpu.ready [--dry-run]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

NEEDED = {"torch": (2, 11), "triton": (3, 6)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="a GPU is not needed")
    args = parser.parse_args(argv)
    problem = next(problems(needs_gpu=not args.dry_run), None)
    if problem is None:
        return 0
    print(f"error: {problem}", file=sys.stderr)
    return 2


def problems(*, needs_gpu: bool) -> Iterator[str]:
    """What is missing, the first thing first."""
    for package, least in NEEDED.items():
        wanted = ".".join(map(str, least))
        try:
            found = version(package)
        except PackageNotFoundError:
            yield f"{package} is not installed, {wanted} or newer is needed"
            continue
        if tuple(map(int, re.findall(r"\d+", found)[:2])) < least:
            yield f"{package} is {found}, {wanted} or newer is needed"
    if needs_gpu:
        import torch

        if not torch.cuda.is_available():
            yield "torch sees no GPU; --dry-run rehearses on a CPU"


if __name__ == "__main__":
    raise SystemExit(main())

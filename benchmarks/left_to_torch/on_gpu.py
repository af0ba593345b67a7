"""What torch.compile makes of the parts of a layer that have no kernel of ours, for a GPU that is not here.

    python -m benchmarks.left_to_torch.on_gpu --arch sm_90 [--parts 'layer norm'] [--hidden 1024] [--types bf16]

Writes JSON lines: for each part, type and width, forward and backward, the kernels that would be launched, the bytes
that they move, the bytes that have to be moved at least, those of torch's operators when nothing is compiled, and
registers and spills of the kernels, compiled ahead of time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

PARTS = ("layer norm", "bias + GELU", "norm, MLP and residual")
TOKENS, HIDDEN, TYPES = 16_384, (1024, 4096), ("bf16", "fp32")

Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=["sm_80", "sm_90"], required=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--hidden", nargs="+", type=int, default=HIDDEN)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    args = parser.parse_args(argv)
    from torch._inductor.utils import fresh_cache

    from benchmarks.left_to_torch.absent_gpu import pretend

    pretend(args.arch)
    with fresh_cache():
        for row in measure(args.arch, args.parts, args.hidden, args.types):
            print(json.dumps(row), flush=True)
    return 0


def measure(arch: str, parts: Sequence[str], widths: Sequence[int], kinds: Sequence[str]) -> Iterator[Row]:
    """A row for each direction; the process must have pretended to have the GPU."""
    compiled: dict[str, Row] = {}
    for part, kind, H in product(parts, kinds, widths):
        named = {"arch": arch, "part": part, "type": kind, "hidden": H, "tokens": TOKENS}
        for direction, figures in zip(("forward", "backward"), _of_case(part, kind, H), strict=True):
            sources = figures.pop("sources")
            resources = {name: _resources(compiled, name, text, arch) for name, text in sources.items()}
            yield named | {"direction": direction} | figures | {"kernels": resources}


def _of_case(part: str, kind: str, H: int) -> Iterator[Row]:
    """Launches, bytes and the kernels' sources, forward and backward."""
    import torch

    from benchmarks.left_to_torch.absent_gpu import programs
    from benchmarks.left_to_torch.cases import CASES, built
    from benchmarks.left_to_torch.cases import TYPES as DTYPES
    from benchmarks.left_to_torch.generated import read_program
    from benchmarks.left_to_torch.operators import bytes_of_operators

    case, dtype = CASES[part], DTYPES[kind]
    module, shape = built(case, H, kind, "meta"), (TOKENS, case.width * H)
    least = case.least(TOKENS, H)
    not_compiled = bytes_of_operators(module, torch.empty(shape, dtype=dtype, device="meta"))
    for source, numbers, eager in zip(programs(module, *shape, dtype=dtype), least, not_compiled, strict=True):
        program = read_program(source)
        yield {
            "matrix_products": program.matrix_products,
            "launches": [vars(launch) for launch in program.launches],
            "moved": sum(launch.read + launch.written for launch in program.launches),
            "read_again": sum(launch.read_again for launch in program.launches),
            "least": dtype.itemsize * numbers,
            "not_compiled": eager,
            "sources": program.sources,
        }


def _resources(compiled: dict[str, Row], name: str, source: str, arch: str) -> Row:
    if source not in compiled:
        compiled[source] = resources(name, source, arch)
    return compiled[source]


def resources(name: str, source: str, arch: str) -> Row:
    """The most registers and spilled bytes of a generated kernel over the tiles that Inductor would try."""
    from torch._inductor.codecache import PyCodeCache

    from benchmarks.left_to_torch.generated import signature
    from glm_kernels.compilation import Compilation, compile_for

    tuner, types = getattr(PyCodeCache.load(source), name), signature(source)
    names = list(types)
    aligned = [names[place] for (place,) in tuner.triton_meta["configs"][0]]
    results = []
    for config in tuner.configs:
        constants = {key: value for key, value in config.kwargs.items() if key in names}
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        plain = {key: kind for key, kind in types.items() if key not in constants}
        results.append(compile_for(Compilation(name, tuner.fn, plain, constants, options, aligned), arch))
    return {
        "tiles": len(results),
        "registers": max(result.registers for result in results),
        "spill_bytes": max(result.spill_bytes for result in results),
        "warnings": sorted({warning for result in results for warning in result.warnings}),
    }


if __name__ == "__main__":
    raise SystemExit(main())

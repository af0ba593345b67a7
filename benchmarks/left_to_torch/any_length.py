"""Whether what training compiles, for rows of every length, is what on_gpu.py counts, for rows of one.

    python -m benchmarks.left_to_torch.any_length --arch sm_90 [--hidden 1024] [--types bf16]

Writes JSON lines: for each part, type and width, the kernels of the program for one length and of the program for every
length, forward and then backward. A compiler that knows no length could as well choose others, which move more.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

HIDDEN, TYPES = (1024, 4096), ("bf16", "fp32")
ONE, EVERY = "rows of one length", "rows of every length"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=["sm_80", "sm_90"], required=True)
    parser.add_argument("--hidden", nargs="+", type=int, default=HIDDEN)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    args = parser.parse_args(argv)
    import torch
    from torch._inductor.utils import fresh_cache

    from benchmarks.left_to_torch.absent_gpu import pretend
    from megatron_glm.training.engines.compiled_parts import bias_gelu, layer_norm

    pretend(args.arch)
    with fresh_cache():
        for H, kind in product(args.hidden, args.types):
            for name, formula, width, more in (("layer norm", layer_norm, H, (1e-5,)), ("GELU", bias_gelu, 4 * H, ())):
                torch.compiler.reset()
                kernels = {way: launched(formula, width, kind, more, way == EVERY) for way in (ONE, EVERY)}
                print(json.dumps({"arch": args.arch, "part": name, "type": kind, "hidden": H, **kernels}), flush=True)
    return 0


def launched(
    formula: Callable[..., Any], width: int, kind: str, more: tuple[float, ...], any_length: bool
) -> list[list[str]]:
    """The kernels that the forward and the backward program launch, in order."""
    import torch
    from torch._dynamo.decorators import mark_unbacked

    from benchmarks.left_to_torch.absent_gpu import programs_of
    from benchmarks.left_to_torch.cases import TYPES as DTYPES
    from benchmarks.left_to_torch.on_gpu import TOKENS
    from megatron_glm.training.engines.compiled_parts import OPTIONS, TYPICAL_ROWS

    torch.compiler.reset()
    vectors = [torch.nn.Parameter(torch.zeros(width, dtype=DTYPES[kind])) for _ in range(2 if more else 1)]
    row = torch.zeros(TOKENS, width, dtype=DTYPES[kind], requires_grad=True)
    if any_length:
        row = torch.zeros(2, width, dtype=DTYPES[kind], requires_grad=True)
        mark_unbacked(row, 0, hint_override=TYPICAL_ROWS)
    return [
        re.findall(r"(\w+)\.run\(", source) for source in programs_of(formula, row, *vectors, *more, options=OPTIONS)
    ]


if __name__ == "__main__":
    raise SystemExit(main())

"""Norm and bias + GELU on this CPU: compiled, not compiled, and beside what only moves as many bytes.

    python -m benchmarks.left_to_torch.on_cpu [--tokens 4096] [--hidden 1024] [--types bf16] [--repeats 5]

Writes JSON lines: CPU seconds of one thread, the best of several, forward and both ways. Scaling of as many numbers is
the bound that no kernel written by hand can pass: forward it reads and writes a tensor, and backward too, where the
others read two and write one; so its time both ways is taken times 5/4. Needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Row = dict[str, Any]
Key = tuple[str, str]  # way, direction
PARTS = ("layer norm", "bias + GELU")
EAGER, COMPILED, CEILING = "not compiled", "torch.compile", "scaling by 2"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", nargs="+", type=int, default=[1024, 4096])
    parser.add_argument("--types", nargs="+", choices=["bf16", "fp32"], default=["bf16", "fp32"])
    parser.add_argument("--repeats", type=int, default=5, help="passes that are timed")
    args = parser.parse_args(argv)
    import torch

    torch.set_num_threads(1)
    for part in PARTS:
        for kind in args.types:
            for H in args.hidden:
                print(json.dumps(measure(part, kind, H, args.tokens, args.repeats)), flush=True)
    return 0


def measure(part: str, kind: str, H: int, T: int, repeats: int) -> Row:
    """CPU seconds of a part's ways, `forward` and `both`."""
    import torch

    from benchmarks.left_to_torch.cases import CASES, TYPES, built

    case, dtype = CASES[part], TYPES[kind]
    # Four times the hidden size would be 256 MB a tensor: the width of the input is what counts.
    module = built(case, H // case.width, kind, "cpu")
    x, upstream = (torch.randn(T, H).to(dtype) for _ in range(2))
    x.requires_grad_()
    ways = {EAGER: module, COMPILED: torch.compile(module, dynamic=False), CEILING: lambda x: x * 2}
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    for way, function in ways.items():
        wanted = [x] if way == CEILING else [x, *module.parameters()]
        calls[way, "forward"] = partial(function, x)
        calls[way, "both"] = partial(_gradients, function, x, wanted, upstream)
    times = best_times(calls, repeats)
    seconds = {way: {what: times[way, what] for what in ("forward", "both")} for way in ways}
    return {"part": part, "type": kind, "tokens": T, "width": H, "seconds": seconds}


def _gradients(function: Callable, x: Tensor, wanted: Sequence[Tensor], upstream: Tensor) -> None:
    import torch

    torch.autograd.grad(function(x), wanted, upstream)


def best_times(calls: Mapping[Key, Callable[[], object]], repeats: int) -> dict[Key, float]:
    """CPU seconds of the fastest of `repeats` calls of each, all in turn; two rounds before warm up."""
    times: dict[Key, list[float]] = {key: [] for key in calls}
    for _ in range(repeats + 2):
        for key, call in calls.items():
            start = time.process_time()
            call()
            times[key].append(time.process_time() - start)
    return {key: min(found[2:]) for key, found in times.items()}


if __name__ == "__main__":
    raise SystemExit(main())

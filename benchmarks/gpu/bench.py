"""What the GPU benchmarks have in common: where they run, how they time, and the parts of their report."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.sizes import FULL, TOY, Sizes

Row = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """The device and the sizes, and a clock for them."""

    device: torch.device
    sizes: Sizes

    @property
    def is_rehearsal(self) -> bool:
        """Whether a CPU goes through the motions: kernels in the interpreter, times that mean nothing."""
        return self.device.type == "cpu"

    def milliseconds(self, function: Callable[[], object]) -> float:
        """The median time of a call, with the cache of the GPU emptied before each; of one call in a rehearsal."""
        if self.is_rehearsal:
            start = time.perf_counter()
            function()
            return 1e3 * (time.perf_counter() - start)
        from triton.testing import do_bench

        return do_bench(
            function, warmup=self.sizes.milliseconds // 3, rep=self.sizes.milliseconds, return_mode="median"
        )

    def forward_and_backward(
        self, function: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor
    ) -> tuple[float, float]:
        """Milliseconds of the function, and of the gradients of its inputs."""
        wanted = [x for x in inputs if x.requires_grad]
        output = function(*inputs)
        forward = self.milliseconds(lambda: function(*inputs))
        backward = self.milliseconds(lambda: torch.autograd.grad(output, wanted, upstream, retain_graph=True))
        return forward, backward

    def peak_megabytes(self, function: Callable[[], object]) -> float | None:
        """Memory that a call adds at its peak; None in a rehearsal."""
        if self.is_rehearsal:
            function()
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 1e6

    def randn(self, *shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> Tensor:
        """Normal numbers, the same in every run."""
        generator = torch.Generator(self.device).manual_seed(len(shape) + sum(shape))
        values = torch.randn(*shape, generator=generator, device=self.device)
        return values.to(dtype).requires_grad_(grad)

    def compiled(
        self, function: Callable[..., Tensor], options: Mapping[str, Any] | None = None
    ) -> Callable[..., Tensor]:
        """The function under torch.compile; in a rehearsal its graph runs as it is, without a C++ compiler.

        Args:
            options: of Inductor.
        """
        if self.is_rehearsal:
            return torch.compile(function, backend="eager", dynamic=False)
        return torch.compile(function, options=options, dynamic=False)


def tried(what: Row, measure: Callable[[], Row]) -> Row:
    """What was measured of it, or the `error` that it ended with: what cannot be run takes nothing else along."""
    try:
        return what | measure()
    except Exception as error:  # of torch, Triton, DeepSpeed or a driver: each has kinds of its own
        traceback.print_exc(file=sys.stderr)
        return what | {"error": " ".join(str(error).split())[:200] or type(error).__name__}


def run_part(name: str, measure: Callable[[Bench], Iterable[Row]], argv: Sequence[str] | None = None) -> int:
    """The command of one part: measure, and leave the rows as `<name>.json` in a directory.

    The file is whole after every row: whoever stops the part has what it found until then.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.gpu.{name}", description=measure.__doc__)
    parser.add_argument("--output", type=Path, required=True, help="directory of the parts of the report")
    parser.add_argument("--dry-run", action="store_true", help="toy sizes on a CPU, kernels in the interpreter")
    args = parser.parse_args(argv)
    if args.dry_run and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("--dry-run runs the kernels in Triton's interpreter: set TRITON_INTERPRET=1")
    if not args.dry_run and not torch.cuda.is_available():
        parser.error("torch sees no GPU; --dry-run rehearses on a CPU")
    bench = Bench(torch.device("cpu"), TOY) if args.dry_run else Bench(torch.device("cuda", 0), FULL)
    start = time.monotonic()
    args.output.mkdir(parents=True, exist_ok=True)
    file, rows = args.output / f"{name}.json", []
    for row in measure(bench):
        rows.append(row)
        report = {"part": name, "rehearsal": bench.is_rehearsal, "seconds": time.monotonic() - start, "rows": rows}
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        partial.replace(file)
    print(f"{name}: {len(rows)} rows in {time.monotonic() - start:.0f} s", flush=True)
    return 0

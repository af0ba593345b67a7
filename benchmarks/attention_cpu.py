"""Attention on a CPU: segment by segment against one masked SDPA call over the whole row.

    python benchmarks/attention_cpu.py [--threads 1] [--json FILE]

The row is four samples of the token objective as the GLM paper has them: 560 tokens, 459 of them part A.
Times are of one forward and backward pass, the best of several.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from glm_kernels.attention import Visibility, attention
from glm_kernels.dropout import DropoutKey, RowKeys, Site

SAMPLES, LENGTH, PART_A, HEAD_DIM = 4, 560, 459, 64
T = SAMPLES * LENGTH


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--heads", type=int, default=8, help=f"of {HEAD_DIM} features")
    parser.add_argument("--repeats", type=int, default=5, help="passes that are timed")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    results = measure(args.heads, args.repeats)
    baseline = results["one masked call over the row"]
    print(f"{T} tokens, {args.heads} heads of {HEAD_DIM}, fp32, {args.threads} thread(s)")
    for name, seconds in results.items():
        print(f"  {name:32} {1e3 * seconds:8.1f} ms  {baseline / seconds:5.2f}x")
    if args.json:
        report = {"tokens": T, "heads": args.heads, "threads": args.threads, "seconds": results}
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def measure(heads: int, repeats: int) -> dict[str, float]:
    """Seconds of a forward and backward pass by variant."""
    segments = [(start, PART_A, start + LENGTH) for start in range(0, T, LENGTH)]
    visibility = Visibility.from_segments(segments, T)
    mask = visibility.dense()
    row_keys = RowKeys.from_lengths(range(SAMPLES), [LENGTH] * SAMPLES, T)
    key = DropoutKey(seed=1, layer=0, site=Site.ATTENTION)
    inputs = [torch.randn(T, heads, HEAD_DIM, requires_grad=True) for _ in range(3)]

    def masked(*inputs: Tensor) -> Tensor:
        query, key, value = (x.transpose(0, 1)[None] for x in inputs)
        return scaled_dot_product_attention(query, key, value, attn_mask=mask)[0].transpose(0, 1)

    def segmented(*inputs: Tensor) -> Tensor:
        return attention(*inputs, visibility)

    def dropped(*inputs: Tensor) -> Tensor:
        return attention(*inputs, visibility, dropout=0.1, row_keys=row_keys, dropout_key=key)

    variants = {
        "one masked call over the row": masked,
        "segment by segment": segmented,
        "segment by segment, dropout 0.1": dropped,
    }
    return {name: best_time(variant, inputs, repeats) for name, variant in variants.items()}


def best_time(function: Callable[..., Tensor], inputs: list[Tensor], repeats: int) -> float:
    """Seconds of the fastest of `repeats` forward and backward passes."""
    times = []
    for _ in range(repeats + 1):  # the first warms up
        start = time.perf_counter()
        function(*inputs).sum().backward()
        times.append(time.perf_counter() - start)
    return min(times[1:])


if __name__ == "__main__":
    main()

"""Attention on a CPU: what training uses against the stock ways to compute it, forward and backward.

    python -m benchmarks.attention_cpu [--heads 8] [--repeats 5] [--json FILE]

Rows are four samples as the GLM paper has them, of the token objective (560 tokens, 459 of them part A) and of the
document objective (563, 141). Times are CPU time of one thread, the best of several, all variants in turn.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.merged_attention import MergedPartB
from benchmarks.origin import origin
from glm_kernels.attention import Visibility, attention
from glm_kernels.attention.masked_sdpa import masked_sdpa_attention
from glm_kernels.dropout import DropoutKey, RowKeys, Site

SAMPLES, HEAD_DIM = 4, 64
SHAPES = {"token": (459, 560), "document": (141, 563)}  # part A and all of a sample
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

BASELINE = "one masked call over the row"
TRAINING = "in training"
Variant = Callable[[Tensor, Tensor, Tensor], Tensor]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=8, help=f"of {HEAD_DIM} features")
    parser.add_argument("--repeats", type=int, default=5, help="passes that are timed")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    args = parser.parse_args(argv)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results = [measure(shape, kind, args.heads, args.repeats) for kind in TYPES for shape in SHAPES]
    torch.set_num_threads(threads)
    for row in results:
        print(f"four {row['objective']} samples, {args.heads} heads of {HEAD_DIM}, {row['type']}")
        baseline = row["seconds"][BASELINE]
        for name, seconds in row["seconds"].items():
            print(f"  {name:34} {1e3 * seconds:8.1f} ms  {baseline / seconds:5.2f}x")
    if args.json:
        arguments = sys.argv[1:] if argv is None else argv
        report = {**origin("benchmarks.attention_cpu", arguments, ["torch", "numpy"]), "rows": results}
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def measure(objective: str, kind: str, heads: int, repeats: int) -> dict[str, object]:
    """CPU seconds of a forward and backward pass by variant, for a row of one objective in one type of number."""
    part_a, length = SHAPES[objective]
    generator = torch.Generator().manual_seed(1)
    draw = (torch.randn(SAMPLES * length, heads, HEAD_DIM, generator=generator) for _ in range(3))
    inputs = [x.to(TYPES[kind]).requires_grad_() for x in draw]
    seconds = best_times(variants(part_a, length), inputs, repeats)
    return {
        "objective": objective,
        "type": kind,
        "tokens": SAMPLES * length,
        "part A": part_a,
        "heads": heads,
        "seconds": seconds,
    }


def variants(part_a: int, length: int) -> dict[str, Variant]:
    """The ways to compute the row, by name; all but the one with dropout have the same result."""
    T = SAMPLES * length
    visibility = Visibility.from_segments([(start, part_a, start + length) for start in range(0, T, length)], T)
    row_keys = RowKeys.from_lengths(range(SAMPLES), [length] * SAMPLES, T)
    key = DropoutKey(seed=1, layer=0, site=Site.ATTENTION)

    def dropped(*inputs: Tensor) -> Tensor:
        return attention(*inputs, visibility, dropout=0.1, row_keys=row_keys, dropout_key=key)

    return {
        BASELINE: lambda *inputs: masked_sdpa_attention(*inputs, visibility),
        "one masked call a sample": lambda *inputs: by_sample(one_call, inputs, part_a, length),
        "two calls a sample": lambda *inputs: by_sample(two_calls, inputs, part_a, length),
        "three calls a sample, merged": lambda *inputs: by_sample(three_calls, inputs, part_a, length),
        TRAINING: lambda *inputs: attention(*inputs, visibility),
        f"{TRAINING}, dropout 0.1": dropped,
    }


def by_sample(function: Callable[..., Tensor], inputs: Sequence[Tensor], part_a: int, length: int) -> Tensor:
    """The function of each sample in turn, [1, heads, n, d] inside; [T, heads, d] each -> [T, heads, d]."""
    samples = zip(*(x.transpose(0, 1)[None].split(length, dim=2) for x in inputs), strict=True)
    return torch.cat([function(*sample, part_a) for sample in samples], dim=2)[0].transpose(0, 1)


def one_call(query: Tensor, key: Tensor, value: Tensor, part_a: int) -> Tensor:
    """A mask over the whole sample."""
    visible = Visibility.from_segments([(0, part_a, query.shape[2])], query.shape[2]).dense()
    return scaled_dot_product_attention(query, key, value, attn_mask=visible)


def two_calls(query: Tensor, key: Tensor, value: Tensor, part_a: int) -> Tensor:
    """Part A without a mask, part B with the mask of its own rows."""
    over_a = scaled_dot_product_attention(query[:, :, :part_a], key[:, :, :part_a], value[:, :, :part_a])
    n = query.shape[2]
    visible = torch.ones(n - part_a, n, dtype=torch.bool).tril(diagonal=part_a)
    over_b = scaled_dot_product_attention(query[:, :, part_a:], key, value, attn_mask=visible)
    return torch.cat([over_a, over_b], dim=2)


def three_calls(query: Tensor, key: Tensor, value: Tensor, part_a: int) -> Tensor:
    """No mask at all: part B over part A and over itself, merged."""
    (query_a, query_b), (key_a, key_b), (value_a, value_b) = (
        (x[:, :, :part_a], x[:, :, part_a:]) for x in (query, key, value)
    )
    over_a = scaled_dot_product_attention(query_a, key_a, value_a)
    return torch.cat([over_a, MergedPartB.apply(query_b, key_a, value_a, key_b, value_b)], dim=2)


def best_times(functions: dict[str, Variant], inputs: list[Tensor], repeats: int) -> dict[str, float]:
    """CPU seconds of the fastest of `repeats` forward and backward passes of each."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):  # the first warms up
        for name, function in functions.items():
            start = time.process_time()
            function(*inputs).sum().backward()
            times[name].append(time.process_time() - start)
    return {name: min(found[1:]) for name, found in times.items()}


if __name__ == "__main__":
    main()

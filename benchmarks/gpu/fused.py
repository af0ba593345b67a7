"""The smaller kernels against torch.compile and eager torch, and what is left to torch.compile against eager.

    python -m benchmarks.gpu.fused --output DIR [--dry-run]

Embedding with dropout, dropout with residual, and the loss are ours. A norm and bias + GELU are left to torch.compile,
by the formulas and options of training: how near it comes to the GB/s of a mere scaling says whether that is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.bench import Bench, Row, run_part, tried
from glm_kernels.dropout import DropoutKey, HiddenDropout, RowKeys, Site, dropout_add
from glm_kernels.embedding import embedding
from glm_kernels.loss import linear_cross_entropy
from megatron_glm.model.layer import LAYERNORM_EPS
from megatron_glm.training.engines.compiled_parts import OPTIONS, bias_gelu, layer_norm

OURS, COMPILED, EAGER = "ours", "torch.compile", "eager"
CEILING = "scaling by 2, the ceiling"
DROPOUT = 0.1
_IN_PART_A = 0.82  # share of the tokens whose block position is 0


@dataclass(frozen=True)
class Operation:
    """What is timed: the ways to compute it, on the same tensors.

    Attributes:
        ways: by name; they take the tensors.
        bytes_moved: that forward and backward have to read and write at least; None where arithmetic decides.
    """

    name: str
    ways: dict[str, Callable[..., Tensor]]
    tensors: Sequence[Tensor]
    upstream: Tensor
    bytes_moved: int | None


def measure(bench: Bench) -> Iterator[Row]:
    """Time each operation's ways forward and backward, and the memory that they add."""
    for operation in operations(bench):
        yield from measured(bench, operation)


def measured(bench: Bench, operation: Operation) -> Iterator[Row]:
    """A row for each way: milliseconds, peak memory, and the GB/s that it moved; `error` instead where it cannot."""
    wanted = [x for x in operation.tensors if x.requires_grad]

    def step(way: Callable[..., Tensor]) -> None:
        torch.autograd.grad(way(*operation.tensors), wanted, operation.upstream)

    def figures(way: Callable[..., Tensor]) -> Row:
        forward, backward = bench.forward_and_backward(way, operation.tensors, operation.upstream)
        row: Row = {"forward_ms": forward, "backward_ms": backward, "peak_mb": bench.peak_megabytes(lambda: step(way))}
        if operation.bytes_moved:
            row["gb_per_s"] = operation.bytes_moved / (forward + backward) / 1e6
        return row

    for name, way in operation.ways.items():
        yield tried({"operation": operation.name, "way": name}, partial(figures, way))


def operations(bench: Bench) -> Iterator[Operation]:
    """All of them, one at a time: the tensors of one are gone when the next is made."""
    yield _embedding(bench)
    yield _dropout_add(bench)
    yield _loss(bench)
    yield _norm(bench)
    yield _bias_gelu(bench)
    yield _scaling(bench)


def _ways(bench: Bench, plain: Callable[..., Tensor], ours: Callable[..., Tensor]) -> dict:
    return {OURS: ours, COMPILED: bench.compiled(plain), EAGER: plain}


def _embedding(bench: Bench) -> Operation:
    sizes = bench.sizes
    generator = torch.Generator().manual_seed(1)
    T, H, positions = sizes.tokens, sizes.hidden, sizes.positions
    words = torch.randint(sizes.vocabulary, (T,), generator=generator)
    place = torch.arange(T) % positions
    in_block = torch.randint(1, 8, (T,), generator=generator)
    in_block[torch.rand(T, generator=generator) < _IN_PART_A] = 0
    ids = [x.to(bench.device) for x in (words, place, in_block)]
    tables = [bench.randn(rows, H, grad=True) for rows in (sizes.vocabulary, positions, positions)]
    dropout = HiddenDropout(DROPOUT, _row_keys(bench), DropoutKey(1, 0, Site.EMBEDDING))

    def plain(*tensors: Tensor) -> Tensor:
        tables, ids = tensors[:3], tensors[3:]
        return F.dropout(sum(F.embedding(i, table) for i, table in zip(ids, tables, strict=True)), DROPOUT)

    def ours(*tensors: Tensor) -> Tensor:
        return embedding(*tensors[3:], *tensors[:3], dropout=dropout, backend="triton")

    # Forward three rows in and one out; backward one in, and the three tables' gradients.
    moved = 2 * (4 * T * H + T * H + sum(table.numel() for table in tables))
    return Operation("embedding + dropout", _ways(bench, plain, ours), [*tables, *ids], bench.randn(T, H), moved)


def _dropout_add(bench: Bench) -> Operation:
    T, H = bench.sizes.tokens, bench.sizes.hidden
    row_keys, key = _row_keys(bench), DropoutKey(1, 0, Site.MLP_OUTPUT)

    def plain(x: Tensor, residual: Tensor) -> Tensor:
        return residual + F.dropout(x, DROPOUT)

    def ours(x: Tensor, residual: Tensor) -> Tensor:
        return dropout_add(x, residual, probability=DROPOUT, row_keys=row_keys, key=key, backend="triton")

    # Forward two in and one out; backward one in and one out: the residual's gradient is the one that came.
    tensors = [bench.randn(T, H, grad=True) for _ in range(2)]
    return Operation("dropout + residual", _ways(bench, plain, ours), tensors, bench.randn(T, H), 2 * 5 * T * H)


def _loss(bench: Bench) -> Operation:
    sizes = bench.sizes
    N, H, V = sizes.targets, sizes.hidden, sizes.vocabulary
    targets = torch.randint(V, (N,), generator=torch.Generator().manual_seed(2)).to(bench.device)

    def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="none")

    def ours(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return linear_cross_entropy(hidden, weight, targets, num_valid=V, backend="triton")

    tensors = [bench.randn(N, H, grad=True), bench.randn(V, H, grad=True), targets]
    upstream = bench.randn(N, dtype=torch.float32)
    return Operation("output layer + loss", _ways(bench, plain, ours), tensors, upstream, None)


def _norm(bench: Bench) -> Operation:
    T, H = bench.sizes.tokens, bench.sizes.hidden

    plain = partial(layer_norm, eps=LAYERNORM_EPS)
    ways = {COMPILED: bench.compiled(plain, OPTIONS), EAGER: plain}
    tensors = [bench.randn(T, H, grad=True), bench.randn(H, grad=True), bench.randn(H, grad=True)]
    return Operation("layer norm", ways, tensors, bench.randn(T, H), 2 * 5 * T * H)


def _bias_gelu(bench: Bench) -> Operation:
    T, H = bench.sizes.tokens, 4 * bench.sizes.hidden

    ways = {COMPILED: bench.compiled(bias_gelu, OPTIONS), EAGER: bias_gelu}
    tensors = [bench.randn(T, H, grad=True), bench.randn(H, grad=True)]
    return Operation("bias + GELU", ways, tensors, bench.randn(T, H), 2 * 5 * T * H)


def _scaling(bench: Bench) -> Operation:
    """What does nothing but move memory: the ceiling of the GB/s of the others."""
    T, H = bench.sizes.tokens, bench.sizes.hidden
    return Operation(
        CEILING, {EAGER: lambda x: x * 2}, [bench.randn(T, H, grad=True)], bench.randn(T, H), 2 * 4 * T * H
    )


def _row_keys(bench: Bench) -> RowKeys:
    T = bench.sizes.tokens
    return RowKeys.from_lengths([0], [T], T).to(bench.device)


if __name__ == "__main__":
    raise SystemExit(run_part("fused", measure))

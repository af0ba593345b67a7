"""The machine code of the loss: every tile of the table, in every type."""

from __future__ import annotations

from collections.abc import Iterator

from glm_kernels.compilation import Compilation
from glm_kernels.loss.tiles import TILES
from glm_kernels.loss.triton_kernels import gradient_kernel, statistics_kernel


def compilations(architecture: str) -> Iterator[Compilation]:
    """What is launched on an architecture of the table."""
    tiles = TILES[architecture]
    for number in ("bf16", "fp16", "fp32"):
        common = {"logits": f"*{number}", "targets": "*i64", "normalizer": "*fp32", "width": "i32", "valid": "i32"}
        outputs = {"target_logit": "*fp32", "total": "*fp32"}
        yield _compilation(statistics_kernel, number, tiles["loss_statistics"], common | outputs)
        inputs = {"upstream": "*fp32", "uniform": "fp32", "share": "fp32"}
        yield _compilation(gradient_kernel, number, tiles["loss_gradient"], common | inputs)


def _compilation(kernel, number: str, tile, signature: dict[str, str]) -> Compilation:
    return Compilation(
        name=f"{kernel.__name__} {number} {tile.label()}",
        fn=kernel,
        signature=signature,
        constexprs=dict(tile.blocks),
        options=tile.options(),
        aligned=("logits", "width"),
    )

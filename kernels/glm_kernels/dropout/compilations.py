"""The machine code of dropout with residual: every tile of the table, in every type."""

from __future__ import annotations

from collections.abc import Iterator

from glm_kernels.compilation import Compilation
from glm_kernels.dropout.tiles import TILES
from glm_kernels.dropout.triton_kernels import dropout_add_kernel


def compilations(architecture: str) -> Iterator[Compilation]:
    """What is launched on an architecture of the table: forward with a residual, backward without."""
    tile = TILES[architecture]["dropout_add"]
    for number in ("bf16", "fp16", "fp32"):
        for with_residual in (True, False):
            pointers = ["x", "output", *(["residual"] if with_residual else [])]
            signature = dict.fromkeys(pointers, f"*{number}") | {
                "token_key": "*i64",
                "x_stride": "i32",
                "residual_stride": "i32",
                "tokens": "i32",
                "rows": "i32",
                "width": "i32",
                "philox_key": "i64",
                "threshold": "i32",
                "scale": "fp32",
            }
            absent = {"places": None} | ({} if with_residual else {"residual": None})
            yield Compilation(
                name=f"dropout_add {'forward' if with_residual else 'backward'} {number} {tile.label()}",
                fn=dropout_add_kernel,
                signature=signature,
                constexprs=absent | dict(tile.blocks),
                options=tile.options(),
                aligned=(*pointers, "token_key", "x_stride", "residual_stride", "width"),
            )

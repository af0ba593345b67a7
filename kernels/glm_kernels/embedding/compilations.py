"""The machine code of the embedding: every tile of the table, in every type, with dropout and without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from glm_kernels.compilation import Compilation
from glm_kernels.embedding.tiles import TILES
from glm_kernels.embedding.triton_kernels import (
    carried_gradient_kernel,
    embedding_kernel,
    sorted_gradient_kernel,
    table_gradient_kernel,
)
from glm_kernels.tiles import Tile

_SIZES = {
    **dict.fromkeys(("base_stride", "word_stride", "position_stride", "block_stride", "stride"), "i32"),
    **dict.fromkeys(("tokens", "width", "first_word", "words", "positions", "blocks", "first_id", "rows"), "i32"),
}
_IDS = dict.fromkeys(("input_ids", "position_ids", "block_position_ids", "ids", "order", "sorted_rows"), "*i64")
_SCALARS = {"missing": "fp32", "philox_key": "i64", "threshold": "i32", "scale": "fp32"}


def compilations(architecture: str) -> Iterator[Compilation]:
    """What is launched on an architecture of the table."""
    tiles = TILES[architecture]
    forward, carried = tiles["embedding_forward"], tiles["embedding_carried"]
    for number in ("bf16", "fp16", "fp32"):
        kind = "_fp32" if number == "fp32" else ""
        by_atomics, in_order = tiles[f"embedding_gradient{kind}"], tiles[f"embedding_sorted{kind}"]
        for dropout in (True, False):
            keys = {} if dropout else {"token_key": None}
            yield _compilation(embedding_kernel, "whole", number, forward, dropout, {**keys, "base": None})
            yield _compilation(embedding_kernel, "positions", number, forward, dropout, {**keys, "word": None})
            yield _compilation(table_gradient_kernel, "", number, by_atomics, dropout, keys)
            yield _compilation(sorted_gradient_kernel, "", number, in_order, dropout, keys)
        only_words = dict.fromkeys(("base", "position", "block_position", "token_key"))
        yield _compilation(embedding_kernel, "own words", number, forward, False, only_words)
        of_the_tiles_before = {"BLOCK_T": in_order.blocks["BLOCK_T"]}
        yield _compilation(carried_gradient_kernel, "", number, carried, False, of_the_tiles_before)


def _compilation(
    kernel, variant: str, number: str, tile: Tile, dropout: bool, constants: Mapping[str, Any]
) -> Compilation:
    constexprs = {**constants, **tile.blocks}
    kinds = {**_IDS, **_SIZES, **_SCALARS, "token_key": "*i64", "sums": "*fp32", "partial": "*fp32"}
    arguments = [name for name in kernel.arg_names if name not in constexprs]
    signature = {name: kinds.get(name, f"*{number}") for name in arguments}  # what is left are tables and rows
    aligned = [name for name, kind in signature.items() if kind.startswith("*") or "stride" in name]
    words = (kernel.__name__, variant, number, "dropout" if dropout else "", tile.label())
    return Compilation(
        name=" ".join(word for word in words if word),
        fn=kernel,
        signature=signature,
        constexprs=constexprs,
        options=tile.options(),
        aligned=(*aligned, "width"),
    )

"""Every form in which the attention kernels are compiled: for the proof that each one fits its architecture."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from glm_kernels.attention.tiles import DELTA_ROWS, TILES, entry_of, head_parts
from glm_kernels.attention.triton_delta import delta_kernel
from glm_kernels.attention.triton_forward import forward_kernel
from glm_kernels.attention.triton_key_value import key_value_kernel
from glm_kernels.attention.triton_query import query_kernel
from glm_kernels.compilation import Compilation
from glm_kernels.tiles import Tile

_KERNELS = {"forward": forward_kernel, "key_value": key_value_kernel, "query": query_kernel}
_POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
_FLOATS = ("scale", "keep_scale", "factor")
_FP32 = ("log_sum_exp", "delta")
_INT32 = ("key_start", "key_end", "query_start", "query_end", "token")
_HEAD_DIMS = (64, 96, 128)


def compilations(architecture: str) -> Iterator[Compilation]:
    """The kernels at each tile of an architecture's table, for each type that it stands for."""
    for dtype, pointer in _POINTERS.items():
        for head_dim in _HEAD_DIMS:
            yield _delta(head_dim, pointer)
            for dropout in (False, True):
                for long_segments in (False, True):
                    for kernel in _KERNELS:
                        entry = entry_of(kernel, head_dim, dtype, dropout, long_segments)
                        if dtype == torch.float32 and long_segments:
                            continue  # the same entry as that of short ones
                        yield compilation(kernel, head_dim, pointer, dropout, entry, TILES[architecture][entry])


def compilation(kernel: str, head_dim: int, pointer: str, dropout: bool, entry: str, tile: Tile) -> Compilation:
    """One of the three large kernels at a tile; pointer is its type in Triton's notation, "*bf16"."""
    sizes = " ".join(f"{name[-1].lower()}{size}" for name, size in tile.blocks.items())
    constants = {"DROPOUT": dropout, "COUNT": False, "counts": None, **_parts(head_dim), **tile.blocks}
    if not dropout:
        constants |= {"token_key": None, "token": None}
    return Compilation(
        name=f"{entry} {pointer[1:]}{' dropout' if dropout else ''} {sizes} w{tile.num_warps} s{tile.num_stages}",
        fn=_KERNELS[kernel],
        signature=_signature(_KERNELS[kernel].arg_names, pointer, constants),
        constexprs=constants,
        options={"num_warps": tile.num_warps, "num_stages": tile.num_stages},
        aligned=_aligned(_KERNELS[kernel].arg_names, constants),
    )


def _delta(head_dim: int, pointer: str) -> Compilation:
    constants = {"BLOCK_M": DELTA_ROWS, **_parts(head_dim)}
    return Compilation(
        name=f"attention_delta_d{head_dim} {pointer[1:]}",
        fn=delta_kernel,
        signature=_signature(delta_kernel.arg_names, pointer, constants),
        constexprs=constants,
        aligned=_aligned(delta_kernel.arg_names, constants),
    )


def _parts(head_dim: int) -> dict[str, int]:
    first, second = head_parts(head_dim)
    return {"HEAD_DIM": head_dim, "FIRST": first, "SECOND": second}


def _signature(names: list[str], pointer: str, constants: dict[str, object]) -> dict[str, str]:
    def type_of(name: str) -> str:
        if name in _FLOATS:
            return "fp32"
        if name == "philox_key":
            return "i64"
        if name in ("T", "threshold", "first_head") or name.endswith("_stride"):
            return "i32"
        if name == "token_key":
            return "*i64"
        return "*fp32" if name in _FP32 else "*i32" if name in _INT32 else pointer

    return {name: type_of(name) for name in names if name not in constants}


def _aligned(names: list[str], constants: dict[str, object]) -> list[str]:
    """The pointers, the strides, and T: a row is padded to a multiple of 64 tokens."""
    others = (*_FLOATS, "philox_key", "threshold", "first_head")
    return [name for name in names if name not in constants and name not in others]

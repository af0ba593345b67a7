"""Interval attention: one entry for all devices and back ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from torch import Tensor

from glm_kernels.attention.interval import interval_kernel_attention, runs_interval_kernels
from glm_kernels.attention.segments import segment_attention
from glm_kernels.attention.visibility import Visibility
from glm_kernels.dropout.keys import DropoutKey, RowKeys

AttentionBackend = Literal["auto", "triton", "segments", "flash-varlen", "flex", "sdpa", "reference"]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    *,
    dropout: float = 0.0,
    row_keys: RowKeys | None = None,
    dropout_key: DropoutKey | None = None,
    first_head: int = 0,
    backend: AttentionBackend = "auto",
) -> Tensor:
    """Scaled dot-product attention of each token over the keys it sees.

    Args:
        query, key, value: [T, heads, d].
        dropout: probability of dropping an attention weight; keyed, so it needs the two below.
        first_head: where these heads stand among all of the layer; a part of the key.
        backend: "auto": our kernels on a GPU, segment by segment on a CPU; the others force the choice.

    Returns:
        [T, heads, d]; padding rows are 0.

    Raises:
        ValueError: the row, its visibility and its keys differ in length, dropout comes without its keys, or the
            forced back end cannot do what is asked.
    """
    if query.shape[0] != visibility.length:
        raise ValueError(f"a row of {query.shape[0]} tokens with the visibility of {visibility.length}")
    if dropout and (row_keys is None or dropout_key is None):
        raise ValueError(f"attention dropout {dropout} needs row_keys and dropout_key")
    if dropout and query.shape[0] != row_keys.token.shape[0]:
        raise ValueError(f"a row of {query.shape[0]} tokens with the dropout keys of {row_keys.token.shape[0]}")
    return _function(_chosen(backend, query))(
        query,
        key,
        value,
        visibility,
        dropout=dropout,
        row_keys=row_keys,
        dropout_key=dropout_key,
        first_head=first_head,
    )


def keeps_scores(query: Tensor, backend: AttentionBackend) -> bool:
    """Whether `attention` keeps scores or weights for its backward pass, instead of computing them again."""
    return _chosen(backend, query) not in ("triton", "flash-varlen", "flex")


def _chosen(backend: str, query: Tensor) -> str:
    if backend == "auto":
        return "triton" if query.is_cuda and runs_interval_kernels(query) else "segments"
    return backend


def _function(backend: str) -> Callable[..., Tensor]:
    # The last four import what no other back end needs.
    match backend:
        case "triton":
            return interval_kernel_attention
        case "segments":
            return segment_attention
        case "flash-varlen":
            from glm_kernels.attention.varlen import varlen_attention

            return varlen_attention
        case "flex":
            from glm_kernels.attention.flex import flex_interval_attention

            return flex_interval_attention
        case "sdpa":
            from glm_kernels.attention.masked_sdpa import masked_sdpa_attention

            return masked_sdpa_attention
        case "reference":
            from glm_kernels.attention.dense import dense_attention

            return dense_attention
    raise ValueError(f"attention backend {backend!r} is none of {', '.join(get_args(AttentionBackend))}")

"""The back end of our own kernels: any interval mask, with dropout, nothing quadratic in memory, no compile a batch."""

from __future__ import annotations

import os

from torch import Tensor

from glm_kernels.attention.interval_op import interval_attention
from glm_kernels.attention.tiles import LARGEST_HEAD
from glm_kernels.attention.visibility import Visibility
from glm_kernels.dispatch import has_kernels_for
from glm_kernels.dropout.keys import DropoutKey, RowKeys

_NO_KEY = DropoutKey(0, 0, 0)


def interval_kernel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    *,
    dropout: float = 0.0,
    row_keys: RowKeys | None = None,
    dropout_key: DropoutKey | None = None,
    first_head: int = 0,
) -> Tensor:
    """Interval attention; [T, heads, d] each -> [T, heads, d], padding rows are 0. See op.attention.

    Raises:
        ValueError: the kernels do not know the type or the size of the heads, or there is nothing that runs them.
    """
    if not runs_interval_kernels(query):
        raise ValueError(
            f"attention backend triton knows heads of up to {LARGEST_HEAD} features in fp32, bf16 and fp16, "
            f"not {query.shape[-1]} in {query.dtype}; use another backend"
        )
    if not (query.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"):
        raise ValueError(
            f"attention backend triton on {query.device}: it needs triton, and a GPU or its interpreter "
            "(TRITON_INTERPRET=1); use backend auto"
        )
    drop_key = dropout_key if dropout else _NO_KEY
    output, _ = interval_attention(
        query,
        key,
        value,
        visibility.key_start,
        visibility.key_end,
        visibility.query_start,
        visibility.query_end,
        row_keys.token_key if dropout else None,
        row_keys.token if dropout else None,
        dropout,
        drop_key.seed,
        drop_key.layer,
        drop_key.site,
        first_head,
        visibility.has_long_segments,
    )
    return output


def runs_interval_kernels(query: Tensor) -> bool:
    """Whether the kernels are there for heads like these, [T, heads, d]."""
    return has_kernels_for(query) and query.shape[-1] <= LARGEST_HEAD

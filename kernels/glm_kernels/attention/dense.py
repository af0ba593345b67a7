"""The back end of the plain formula: quadratic in the row, for comparisons. It drops what the kernels drop."""

from __future__ import annotations

import torch
from torch import Tensor

from glm_kernels.attention.reference import attention_reference
from glm_kernels.attention.visibility import Visibility
from glm_kernels.dropout.keys import DropoutKey, RowKeys
from glm_kernels.dropout.philox_reference import attention_kept


def dense_attention(
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
    """Interval attention; [T, heads, d] each -> [T, heads, d], padding rows are 0. See op.attention."""
    dropped = None
    if dropout:
        heads = range(first_head, first_head + query.shape[1])
        per_token = (row_keys.token_key.cpu().numpy(), row_keys.token.cpu().numpy())
        dropped = ~torch.from_numpy(attention_kept(dropout, *per_token, heads=heads, key=dropout_key)).to(query.device)
    return attention_reference(query, key, value, visibility.dense(), dropout=dropout, dropped=dropped)

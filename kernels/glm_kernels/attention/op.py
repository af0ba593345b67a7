"""Interval attention: one entry for all devices."""

from __future__ import annotations

from torch import Tensor

from glm_kernels.attention.segments import segment_attention
from glm_kernels.attention.visibility import Visibility
from glm_kernels.dropout.keys import DropoutKey, RowKeys


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
) -> Tensor:
    """Scaled dot-product attention of each token over the keys it sees.

    Args:
        query, key, value: [T, heads, d].
        dropout: probability of dropping an attention weight; keyed, so it needs the two below.
        first_head: where these heads stand among all of the layer; a part of the key.

    Returns:
        [T, heads, d]; padding rows are 0.

    Raises:
        ValueError: the row and its visibility differ in length, or dropout comes without its keys.
    """
    if query.shape[0] != visibility.length:
        raise ValueError(f"a row of {query.shape[0]} tokens with the visibility of {visibility.length}")
    if dropout and (row_keys is None or dropout_key is None):
        raise ValueError(f"attention dropout {dropout} needs row_keys and dropout_key")
    return segment_attention(
        query,
        key,
        value,
        visibility,
        dropout=dropout,
        row_keys=row_keys,
        dropout_key=dropout_key,
        first_head=first_head,
    )

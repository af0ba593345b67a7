"""Attention by torch's own kernel with a mask over the whole row: the plainest back end, quadratic in the row."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from glm_kernels.attention.refusals import refuse_dropout
from glm_kernels.attention.visibility import Visibility
from glm_kernels.dropout.keys import DropoutKey, RowKeys


def masked_sdpa_attention(
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
        ValueError: dropout is asked for.
    """
    refuse_dropout("sdpa", dropout)
    sees_something = visibility.key_end > visibility.key_start
    # What a kernel makes of a row of nothing differs from kernel to kernel: let it see itself, and zero it after.
    itself = torch.eye(visibility.length, dtype=torch.bool, device=query.device)
    visible = visibility.dense() | (itself & ~sees_something[:, None])
    query, key, value = (x.transpose(0, 1)[None] for x in (query, key, value))
    output = scaled_dot_product_attention(query, key, value, attn_mask=visible)[0].transpose(0, 1)
    return output * sees_something[:, None, None]

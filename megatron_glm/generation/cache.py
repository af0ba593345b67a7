"""The keys and values of what was read so far, one cache a layer.

Part A sees all of itself, and a token of part B everything before it: read in this order, every
token sees exactly what the cache holds, so attention over it needs no mask.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class LayerCache:
    """Keys and values of one layer, room for `capacity` tokens.

    Args:
        like: a tensor of the model; the cache has its dtype and device.
    """

    def __init__(self, capacity: int, num_heads: int, head_dim: int, like: Tensor):
        self._keys = like.new_empty(num_heads, capacity, head_dim)
        self._values = torch.empty_like(self._keys)
        self.length = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Append the tokens, then let each see all there is: [n, heads, d] each -> [n, heads, d].

        The tokens are either the whole of part A or a single one of part B.

        Raises:
            ValueError: the cache is full.
        """
        stop = self.length + key.shape[0]
        if stop > self._keys.shape[1]:
            raise ValueError(f"{stop} tokens in a cache of {self._keys.shape[1]}")
        self._keys[:, self.length : stop] = key.transpose(0, 1)
        self._values[:, self.length : stop] = value.transpose(0, 1)
        self.length = stop
        # With a batch dimension: the fused kernels take four dimensions only.
        context = scaled_dot_product_attention(
            query.transpose(0, 1)[None], self._keys[None, :, :stop], self._values[None, :, :stop]
        )
        return context[0].transpose(0, 1)

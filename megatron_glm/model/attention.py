"""Multi-head self-attention: the projections; who sees whom is the caller's."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # query, key, value [T, heads, d] -> context [T, heads, d]


class SelfAttention(nn.Module):
    """[T, H] -> [T, H]. The rows of query_key_value are [Q; K; V], each with its heads one after another.

    With `places`, int64 [N], the outputs of those tokens only: [N, H].
    """

    def __init__(self, hidden_size: int, num_heads: int):
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor, attend: Attend, places: Tensor | None = None) -> Tensor:
        # The number of heads is read off the projection, so that a shard of the heads runs as it is.
        projections = self.query_key_value(hidden).chunk(3, dim=-1)
        query, key, value = (x.unflatten(-1, (-1, self.head_dim)) for x in projections)
        context = attend(query, key, value).flatten(1)
        return self.dense(context if places is None else context.index_select(0, places))

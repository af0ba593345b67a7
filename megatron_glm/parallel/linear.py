"""Linear layers and norms over a shard of the features, or of the tokens.

A column-parallel layer computes this rank's output features from whole inputs, a row-parallel one a partial
sum of all outputs from this rank's input features; one after the other they need one exchange. Where the
tokens are spread over the ranks between the layers (sequence parallelism), that exchange is halved in two,
and the norms' parameters, which every rank uses for its own tokens, have their gradients summed.

Source: Megatron-LM (arXiv 1909.08053, section 3; 2205.05198, section 4.2.2).
"""

from __future__ import annotations

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_glm.parallel.collectives import bundle_to_shards, from_shards, gather_rows, scatter_rows, to_shards


class ColumnParallelLinear(nn.Linear):
    """This rank's output features: [T, in] -> [T, out / size], or of spread tokens [T / size, in].

    Args:
        in_features: of the whole layer.
        out_features: of this rank.
        spread: the input has this rank's tokens only.
    """

    def __init__(self, in_features: int, out_features: int, *, group: dist.ProcessGroup, spread: bool):
        super().__init__(in_features, out_features)
        self._group = group
        self._to_whole = gather_rows if spread else to_shards

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.whole(x), self.weight, self.bias)

    def whole(self, x: Tensor) -> Tensor:
        """The input as this rank's features use it, all tokens: its gradient is summed over the ranks."""
        return self._to_whole(x, self._group)


class RowParallelLinear(nn.Linear):
    """All output features from this rank's input features: [T, in / size] -> [T, out], or spread tokens of it.

    Args:
        in_features: of this rank.
        out_features: of the whole layer.
        spread: the output has this rank's tokens only.
    """

    def __init__(self, in_features: int, out_features: int, *, group: dist.ProcessGroup, spread: bool):
        super().__init__(in_features, out_features)
        self._group, self._spread = group, spread

    def forward(self, x: Tensor) -> Tensor:
        partial = F.linear(x, self.weight)
        if self._spread:
            return scatter_rows(partial, self._group) + to_shards(self.bias, self._group)
        return from_shards(partial, self._group) + self.bias


class SpreadLayerNorm(nn.LayerNorm):
    """A norm of this rank's tokens: [T / size, H] -> the same."""

    def __init__(self, hidden_size: int, *, eps: float, group: dist.ProcessGroup):
        super().__init__(hidden_size, eps=eps)
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.shared(self.weight, self.bias)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)

    def shared(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        """The two as this rank's tokens use them: their gradients are summed over the ranks."""
        return bundle_to_shards((weight, bias), self._group)

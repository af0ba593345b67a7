"""The feed-forward half of a layer, with bias and GELU in one pass of another kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from megatron_glm.model.mlp import MLP
from megatron_glm.parallel.linear import ColumnParallelLinear

Kernel = Callable[[Tensor, Tensor], Tensor]  # x [T, F], bias [F] -> gelu(x + bias)


class FusedMLP(nn.Module):
    """An MLP, with its parameters and their names: [T, H] -> [T, H]."""

    def __init__(self, mlp: MLP, kernel: Kernel):
        super().__init__()
        self.dense_h_to_4h = GELULinear(mlp.dense_h_to_4h, kernel)
        self.dense_4h_to_h = mlp.dense_4h_to_h

    def forward(self, hidden: Tensor) -> Tensor:
        return self.dense_4h_to_h(self.dense_h_to_4h(hidden))


class GELULinear(nn.Linear):
    """The GELU of a linear layer, or of this rank's output features of it: [T, in] -> [T, out].

    It computes with its bias itself: ZeRO 3 has a parameter at hand only while the module runs that it belongs to.
    """

    def __init__(self, linear: nn.Linear, kernel: Kernel):
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self._kernel = kernel
        self._whole = linear.whole if isinstance(linear, ColumnParallelLinear) else _as_it_is

    def forward(self, x: Tensor) -> Tensor:
        return self._kernel(F.linear(self._whole(x), self.weight), self.bias)


def _as_it_is(x: Tensor) -> Tensor:
    return x

"""The norms of a model, and bias + GELU of its layers, by the kernels that torch.compile writes.

Only these are compiled, each as a function of a few tensors: nothing in them knows of ranks, collectives or dropout, so
they stand in every layout as torch's operators do. Rows differ in length from step to step; each function is compiled
once for all lengths, for training and once more for evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_glm.config.schema import Train
from megatron_glm.model.mlp import MLP
from megatron_glm.parallel.linear import SpreadLayerNorm
from megatron_glm.training.engines.fused_mlp import FusedMLP
from megatron_glm.training.engines.fused_norm import FusedLayerNorm

# What a kernel is shaped for; it takes every number of rows. Were it that of the first row, the order of the sums, and
# so the last bits of a run, would depend on which row that is.
TYPICAL_ROWS = 16_384
OPTIONS: dict[str, Any] = {
    # Nothing is chosen by measuring: ranks, and starts of a run, would choose differently.
    "deterministic": True,
    # The gradients of norm and weight in one pass whatever the number of rows, which has no bound to compile anew for.
    "triton.mix_order_reduction_non_strict_mode": True,
    # What lies there is read by pickle, and may have been shaped for another number of rows.
    "fx_graph_cache": False,
    # More would be processes that stay beside each rank for as long as it runs.
    "compile_threads": 1,
}


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The formula that is compiled for a norm: [T, H], [H] twice -> [T, H]."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """The formula that is compiled for an MLP: [T, F], [F] -> [T, F]."""
    return F.gelu(x + bias, approximate="tanh")


class CompiledParts:
    """Both formulas compiled; whoever makes a second one shares what the first has compiled.

    Raises:
        RuntimeError: this torch lacks an option.
    """

    def __init__(self) -> None:
        from torch._dynamo.decorators import mark_unbacked  # seconds, for those who compile

        self._mark = partial(mark_unbacked, index=0, hint_override=TYPICAL_ROWS)
        # Whole, or an error: torch must not go on without, even where its own settings say so.
        self._norm: Callable[..., Tensor] = torch.compile(layer_norm, fullgraph=True, options=OPTIONS)
        self._bias_gelu: Callable[..., Tensor] = torch.compile(bias_gelu, fullgraph=True, options=OPTIONS)

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor, shape: tuple[int, ...], eps: float) -> Tensor:
        """`layer_norm`, with the arguments of FusedLayerNorm's kernels; T > 0."""
        self._mark(x)
        return self._norm(x, weight, bias, eps)

    def bias_gelu(self, x: Tensor, bias: Tensor) -> Tensor:
        """`bias_gelu` for any T."""
        if not len(x):  # a micro-batch without targets: a kernel would start a grid of no blocks
            return bias_gelu(x, bias)
        self._mark(x)
        return self._bias_gelu(x, bias)


def compile_parts(model: nn.Module) -> None:
    """Let compiled kernels compute norms, but those of apex, and bias + GELU, in place; parameters keep their names."""
    parts = CompiledParts()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in (nn.LayerNorm, SpreadLayerNorm):
                setattr(parent, name, FusedLayerNorm(child, parts.norm))
            elif isinstance(child, MLP):
                setattr(parent, name, FusedMLP(child, parts.bias_gelu))


def is_compiled(settings: Train) -> bool:
    """Whether a model is to be built with compiled parts. `auto`: on a GPU; on a CPU torch's own are faster."""
    if settings.compile == "auto":
        return torch.cuda.is_available()
    return settings.compile == "always"

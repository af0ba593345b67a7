"""What the stock kernels cannot do, said before they do something else."""

from __future__ import annotations

import torch
from torch import Tensor


def refuse_dropout(name: str, dropout: float) -> None:
    """Raise ValueError for any dropout: a stock kernel draws its own mask, which no key repeats."""
    if dropout:
        raise ValueError(
            f"attention by {name} has no keyed dropout, got dropout {dropout}; "
            "use triton, segments or reference, or train with model.attention_dropout=0"
        )


def refuse_types(name: str, query: Tensor, allowed: tuple[torch.dtype, ...]) -> None:
    """Raise ValueError for a type of number that the kernel does not multiply."""
    if query.dtype not in allowed:
        shown = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise ValueError(
            f"attention by {name} computes in {shown}, got {str(query.dtype).removeprefix('torch.')}; "
            "use triton, segments or sdpa"
        )

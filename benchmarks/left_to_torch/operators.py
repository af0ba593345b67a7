"""What torch's operators move when nothing is compiled: each of them reads what goes in and writes what comes out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_MATRIX_PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}


class _Bytes(TorchDispatchMode):
    """Adds up the bytes of operators that make new tensors; views move nothing, and matrix products do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_view = any(value.alias_info is not None for value in func._schema.returns)
        if func not in _MATRIX_PRODUCTS and not is_view:
            self.moved += sum(x.nbytes for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor))
        return result


def bytes_of_operators(module: nn.Module, x: Tensor) -> tuple[int, int]:
    """Bytes of the operators forward and backward, of an input and a module that are both on "meta".

    An operator may take several passes over what it reads, so these are the fewest that it can move.
    """
    x = x.requires_grad_()
    with _Bytes() as forward:
        output = module(x)
    upstream = torch.empty_like(output)
    with _Bytes() as backward:
        torch.autograd.grad(output, [x, *module.parameters()], upstream)
    return forward.moved, backward.moved

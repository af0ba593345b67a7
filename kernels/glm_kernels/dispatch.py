"""Which of its two implementations an operation runs on."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

Backend = Literal["auto", "triton", "torch"]

_HAS_TRITON = find_spec("triton") is not None
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def runs_on_triton(backend: Backend, tensor: Tensor) -> bool:
    """Whether an operation on this tensor is one of our kernels, or stock torch.

    Args:
        backend: "auto": kernels on a GPU, for the types that they know, where Triton is installed; the others force
            the choice. Kernels run on a CPU only in Triton's interpreter (TRITON_INTERPRET=1).

    Raises:
        ValueError: the backend is unknown, or kernels are forced on a type that they do not know.
    """
    if backend not in ("auto", "triton", "torch"):
        raise ValueError(f"backend {backend!r} is none of auto, triton, torch")
    if backend == "triton" and tensor.dtype not in KERNEL_TYPES:
        raise ValueError(f"the kernels know fp32, bf16 and fp16, not {tensor.dtype}; use the backend torch")
    if backend != "auto":
        return backend == "triton"
    return _on_a_gpu(tensor) and has_kernels_for(tensor)


def has_kernels_for(tensor: Tensor) -> bool:
    """Whether Triton is installed, and the kernels know the type of this tensor."""
    return _HAS_TRITON and tensor.dtype in KERNEL_TYPES


def _on_a_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda

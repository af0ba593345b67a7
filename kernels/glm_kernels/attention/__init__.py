"""Attention over the intervals of a flat row."""

from glm_kernels.attention.op import attention
from glm_kernels.attention.visibility import Visibility

__all__ = ["Visibility", "attention"]

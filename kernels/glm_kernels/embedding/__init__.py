"""The embedding sum."""

from glm_kernels.embedding.op import embedding

__all__ = ["embedding"]

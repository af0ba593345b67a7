"""The embedding sum."""

from glm_kernels.embedding.op import add_positions, embedding, own_words

__all__ = ["add_positions", "embedding", "own_words"]

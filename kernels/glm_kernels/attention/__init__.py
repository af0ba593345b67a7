"""Attention over the intervals of a flat row."""

from glm_kernels.attention.op import AttentionBackend, attention, keeps_scores
from glm_kernels.attention.visibility import Visibility

__all__ = ["AttentionBackend", "Visibility", "attention", "keeps_scores"]

"""The loss of the output layer."""

from glm_kernels.loss.op import linear_cross_entropy, smoothed_cross_entropy

__all__ = ["linear_cross_entropy", "smoothed_cross_entropy"]

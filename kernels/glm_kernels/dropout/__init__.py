"""Dropout whose masks are keyed by sample and site."""

from glm_kernels.dropout.keys import DropoutKey, RowKeys, Site
from glm_kernels.dropout.op import HiddenDropout, dropout_add

__all__ = ["DropoutKey", "HiddenDropout", "RowKeys", "Site", "dropout_add"]

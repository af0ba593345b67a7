"""Which parameters the optimizer decays."""

from __future__ import annotations

from collections.abc import Iterable


def decayed_names(names: Iterable[str]) -> set[str]:
    """Those of the names that weight decay applies to: all but norms and biases; embeddings are decayed.

    Decided by name, not by shape: a partitioned parameter (ZeRO-3) has lost its shape.
    """
    return {name for name in names if not name.endswith(".bias") and "layernorm" not in name}

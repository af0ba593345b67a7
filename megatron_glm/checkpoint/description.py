"""What is told of a checkpoint, from its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def layout_text(state: Mapping[str, Any]) -> str:
    """Which processes saved it: 'data 2 × pipeline 1 × tensor 1, ZeRO 1'."""
    layout = state.get("layout")
    if not isinstance(layout, Mapping):
        return "a layout that was not recorded"
    axes = " × ".join(f"{axis} {layout.get(axis, '?')}" for axis in ("data", "pipeline", "tensor"))
    return f"{axes}, ZeRO {layout.get('zero_stage', '?')}"

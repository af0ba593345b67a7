"""Numbers of bytes, for people."""

from __future__ import annotations


def size_text(size: float) -> str:
    """Bytes for people: '1.5 GB'."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"

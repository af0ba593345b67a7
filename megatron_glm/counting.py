"""Numbers of things, for people."""

from __future__ import annotations


def count_text(number: int, noun: str) -> str:
    """How many of them: '1 replica', '2 replicas'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

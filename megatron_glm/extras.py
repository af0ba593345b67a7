"""How what a part needs beside the rest is installed: setup.py names the extras."""

from __future__ import annotations


def install_command(extra: str) -> str:
    """Of the versions that were tested, from the project's folder."""
    return f"pip install -c constraints.txt -e '.[{extra}]'"

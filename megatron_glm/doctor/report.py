"""The findings as a person or a program reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from megatron_glm.doctor.finding import Finding

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def as_json(findings: Sequence[Finding], *, processes: int) -> str:
    """One JSON object: processes, and checks with check, status, value, fix."""
    return json.dumps({"processes": processes, "checks": [vars(finding) for finding in findings]}, indent=2)


def as_lines(findings: Sequence[Finding]) -> str:
    """One line a check, and their number by status."""
    width = max(len(finding.check) for finding in findings)
    lines = [f"{f.status:<4}  {f.check:<{width}}  {f.value}{f' -> {f.fix}' if f.fix else ''}" for f in findings]
    return "\n".join([*lines, _summary(findings)])


def show_table(findings: Sequence[Finding], console: Console) -> None:
    """A table on a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("", "check", "found", "to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        status = Text(finding.status, style=_STYLES[finding.status])
        table.add_row(status, Text(finding.check), Text(finding.value), Text(finding.fix))
    console.print(table)
    console.print(_summary(findings), highlight=False)


def _summary(findings: Sequence[Finding]) -> str:
    return ", ".join(f"{sum(f.status == status for f in findings)} {status}" for status in _STYLES)

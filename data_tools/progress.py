"""How far a run is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from data_tools.units import Amount

_LINE_SECONDS = 10.0


class ProgressDisplay:
    """Shows the amount done on `stream` (default: stderr), of `total_bytes` input bytes; `phase` says what is done."""

    def __init__(self, total_bytes: int, stream: TextIO | None = None, *, phase: str = "tokenizing"):
        self._total, self._phase = total_bytes, phase
        self._console = Console(file=stream or sys.stderr)
        self._start = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if self._console.is_terminal:
            columns = (
                TextColumn(phase),
                BarColumn(),
                TextColumn("{task.percentage:3.0f}%  {task.fields[rate]}"),
            )
            self._bar = Progress(*columns, TextColumn("eta"), TimeRemainingColumn(), console=self._console)
            self._task = self._bar.add_task("", total=total_bytes, rate="")

    def update(self, amount: Amount) -> None:
        seconds = max(time.monotonic() - self._start, 1e-9)
        rate = rates(amount, seconds)
        if self._bar:
            self._bar.update(self._task, completed=amount.input_bytes, rate=rate)
        elif time.monotonic() - self._last_line >= _LINE_SECONDS and amount.input_bytes:
            self._last_line = time.monotonic()
            left = seconds * (self._total - amount.input_bytes) / amount.input_bytes
            share = amount.input_bytes / self._total
            self._console.print(f"{self._phase} {share:.0%}  {rate}  eta {left:.0f} s", highlight=False)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()


def rates(amount: Amount, seconds: float) -> str:
    """Throughput: megabytes (10**6) of UTF-8 text and tokens, where there are any, a second."""
    tokens = f"  {amount.tokens / seconds / 1e6:.2f}M tok/s" if amount.tokens else ""
    return f"{amount.text_bytes / seconds / 1e6:.1f} MB/s{tokens}"

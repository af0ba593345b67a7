"""Which phase a run of data_tools.preprocess is in, told from what lies on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# In the order of a run. Starting: nothing has changed yet; verifying: what an earlier start has finished is read.
PHASES = (
    "starting",
    "hashing",
    "sorting",
    "verifying",
    "tokenizing",
    "placing",
    "manifest",
    "publishing",
    "cleaning",
)


class RunState:
    """Looks at a run from outside; made before it starts, as an earlier one may have left something.

    Args:
        output: the data directory of the run.
    """

    def __init__(self, output: Path):
        self._output = output
        self._directory = output.with_name(f".{output.name}.tmp")
        self._units, self._hashes = self._directory / "units", self._directory / "units" / "hashes"
        self._removed = output.with_name(f".{output.name}.units")
        self._before = set(self._entries())
        self._resumed = bool(self._finished(self._before))

    def phase(self) -> str:
        """One of PHASES."""
        now = set(self._entries())
        new = now - self._before
        if self._output.exists():
            return "cleaning"
        if now == self._before or not (self._units.exists() or self._removed.exists()):
            return "starting"
        if self._removed.exists():
            return "publishing"
        if any("manifest.json" in path.name for path in now):
            return "manifest"
        if any(path.name in ("train", "held_out") and path.parent == self._directory for path in now):
            return "placing"
        started = {path.parent for path in new if path.stem.isdecimal() and path.suffix}
        if self._units in started:
            return "tokenizing"
        if any(path.name.startswith("duplicates.") for path in new):
            if self._resumed:
                return "verifying"
            return "tokenizing" if self._finished(now) else "sorting"
        return "verifying" if self._resumed and self._hashes not in started else "hashing"

    def _finished(self, entries: set[Path]) -> list[Path]:
        return [path for path in entries if path.name.isdecimal() and path.parent == self._units]

    def _entries(self) -> Iterator[Path]:
        for directory in (self._directory, self._units, self._hashes):
            try:
                yield from directory.iterdir()
            except FileNotFoundError:  # not yet, or moved meanwhile
                continue

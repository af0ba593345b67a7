"""The metrics file: one JSON object a line, the source of truth of a run's curves."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megatron_glm.errors import UserError
from megatron_glm.files import atomic_file
from megatron_glm.json_reading import parse_json


class MetricsLog:
    """Appends records to a file; every line is on its way to the disk when `write` returns.

    Args:
        path: of the file; its directory must be there.
        start_step: step of the checkpoint that is continued. Records of later steps, which the run
            will make again, are dropped, so that curves show every step once; so is a line cut by a crash.
    """

    def __init__(self, path: Path, *, start_step: int):
        self.path = path
        if path.exists():
            _keep_until(path, start_step)
        self._stream = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Append a record; it has a `step`. What is not finite is written as null, as JSON has no NaN.

        Raises:
            UserError: the disk is full, or gone.
        """
        try:
            self._stream.write(json.dumps(_finite(record), allow_nan=False) + "\n")
            self._stream.flush()
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}); resume when there is room") from error

    def rewind(self, step: int) -> None:
        """Drop the records of later steps, which the run will make again."""
        self.close()
        _keep_until(self.path, step)
        self._stream = self.path.open("a", encoding="utf-8")

    def close(self) -> None:
        with self._stream:
            self._stream.flush()
            os.fsync(self._stream.fileno())


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a metrics file in order; lines that are none (cut by a crash) are passed over."""
    with open(path, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                record = parse_json(line)
            except ValueError:
                continue
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                yield record


def _keep_until(path: Path, step: int) -> None:
    with atomic_file(path) as stream:
        for record in read_metrics(path):
            if record["step"] <= step:
                stream.write((json.dumps(record) + "\n").encode())


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

"""Which documents a step was made of, written beside the metrics where something was wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from megatron_glm.errors import DataError
from megatron_glm.files import atomic_file

CULPRITS = "culprits"


class Culprits:
    """Writes `culprits/step_N.jsonl` in the output of a run: a line a sample.

    Args:
        documents: of a sample, what JSON can hold.
        leads: whether this process writes.
    """

    def __init__(self, output: Path, documents: Callable[[int], dict[str, Any]], *, leads: bool):
        self._output = output
        self._documents = documents
        self._leads = leads

    def __call__(self, step: int, samples: np.ndarray) -> str | None:
        """The file, relative to the output; None where it cannot be written, or is another process's."""
        name = f"{CULPRITS}/step_{step:08d}.jsonl"
        if not self._leads:
            return None
        try:
            lines = [json.dumps(self._documents(index)) + "\n" for index in samples.tolist()]
            (self._output / CULPRITS).mkdir(exist_ok=True)
            with atomic_file(self._output / name) as stream:
                stream.write("".join(lines).encode())
        except (OSError, DataError):
            return None  # the samples are in the record; what is wrong with disk or data, others have to tell
        return name

"""Files that do something when whoever reads them lets them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import torch


class Poison:
    """Its pickle makes a file where it is loaded."""

    def __init__(self, flag: Path):
        self._flag = flag

    def __reduce__(self):
        return open, (str(self._flag), "w")


def poisons(flag: Path) -> dict[str, bytes]:
    """Each kind, by name; `flag` is the file that tells."""
    archive, array = io.BytesIO(), io.BytesIO()
    torch.save({"module": {"word_embeddings.weight": Poison(flag)}, "format_version": 2}, archive)
    np.save(array, np.array([Poison(flag)], object), allow_pickle=True)
    call = f"!!python/object/apply:builtins.open ['{flag}', 'w']"
    return {
        "pickle": pickle.dumps(Poison(flag)),
        "pickle in text": pickle.dumps(Poison(flag), 0),
        "archive of torch": archive.getvalue(),
        "array of objects": array.getvalue(),
        "tagged YAML": call.encode(),
        "tagged YAML in a section": f"train: {call}\nlearning_rate: {call}\n".encode(),
        "Python": f"open({str(flag)!r}, 'w')\n".encode(),
    }

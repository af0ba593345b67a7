"""Reading a checkpoint: any flat range of any parameter, whoever wrote it."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from megatron_glm.checkpoint.format import KINDS, PARAMETERS, STATE, Kind, is_attachment
from megatron_glm.checkpoint.index import Index, Piece
from megatron_glm.checkpoint.manifest import verify_checkpoint
from megatron_glm.errors import CheckpointError

_log = logging.getLogger(__name__)


class CheckpointReader:
    """One whole checkpoint; nothing is read from one that is not.

    Args:
        path: a step's directory.
        verify: check the SHA-256 of every file first; sizes are always checked.

    Attributes:
        run_id: of the run that wrote it.
        step: optimizer steps done.
        state: what the trainer stored.
        shapes: of all parameters by name.

    Raises:
        CheckpointError: a file is missing, cut or changed, or the fragments do not add up.
    """

    def __init__(self, path: Path, *, verify: bool = True):
        if not path.is_dir():
            raise CheckpointError(f"{path}: no such checkpoint directory")
        self.path = path
        self._manifest = verify_checkpoint(path, hashes=verify)
        if unlisted := self._manifest.unlisted_files(path):
            _log.warning("%s: ignored, the manifest does not name them: %s", path, ", ".join(unlisted))
        self.run_id = self._manifest.run_id
        self.step = self._manifest.step
        self.state: dict[str, Any] = self._state()
        self._index = Index.from_json(self._bytes(PARAMETERS), str(path / PARAMETERS))
        self.shapes = self._index.shapes
        self._open: dict[str, Any] = {}  # memory maps, so an open file costs nothing

    def read(self, name: str, kind: Kind, start: int = 0, stop: int | None = None) -> Tensor:
        """Elements [start, stop) of a flattened parameter: fp32 [stop − start].

        Raises:
            CheckpointError: the checkpoint has no such parameter.
            IndexError: the range lies outside it.
        """
        size = self._size(name)
        stop = size if stop is None else stop
        if not 0 <= start <= stop <= size:
            raise IndexError(f"{name}: elements {start}..{stop} of {size}")
        values = torch.empty(stop - start, dtype=torch.float32)
        pieces = self._index.pieces(name, kind)
        first = max(0, bisect_right(pieces, start, key=lambda piece: piece.start) - 1)
        for piece in pieces[first:]:
            if piece.start >= stop:
                break
            begin, end = max(start, piece.start), min(stop, piece.start + piece.length)
            values[begin - start : end - start] = self._read_piece(piece, begin - piece.start, end - piece.start)
        return values

    def parameter_hashes(self) -> dict[str, str]:
        """SHA-256 of the little-endian fp32 bytes of each `name/kind`: equal under every layout."""
        return {f"{name}/{kind}": self._hash(name, kind) for name in sorted(self.shapes) for kind in KINDS}

    def attachments(self) -> dict[str, bytes]:
        """The further files that were saved, by relative path."""
        return {name: self._bytes(name) for name in self._manifest.files if is_attachment(name)}

    def _size(self, name: str) -> int:
        if name not in self.shapes:
            raise CheckpointError(f"{self.path}: has no parameter '{name}' (it has {len(self.shapes)} others)")
        return math.prod(self.shapes[name])

    def _state(self) -> dict[str, Any]:
        try:
            state = json.loads(self._bytes(STATE))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path / STATE}: not JSON ({error})") from error
        if not isinstance(state, dict):
            raise CheckpointError(f"{self.path / STATE}: not a JSON object")
        return state

    def _bytes(self, name: str) -> bytes:
        if name not in self._manifest.files:
            raise CheckpointError(f"{self.path / name}: not in the manifest")
        return (self.path / name).read_bytes()

    def _hash(self, name: str, kind: Kind) -> str:
        digest = hashlib.sha256()
        for values in self._stored(name, kind):
            digest.update(memoryview(values.numpy()))
        return digest.hexdigest()

    def _stored(self, name: str, kind: Kind) -> Iterator[Tensor]:
        for piece in self._index.pieces(name, kind):
            yield self._read_piece(piece, 0, piece.length)

    def _read_piece(self, piece: Piece, begin: int, end: int) -> Tensor:
        where = self.path / piece.file
        if piece.file not in self._manifest.files:
            raise CheckpointError(f"{where}: not in the manifest")
        try:
            if piece.file not in self._open:
                self._open[piece.file] = safe_open(where, framework="pt")
            stored = self._open[piece.file].get_slice(piece.key)
            if stored.get_dtype() != "F32" or stored.get_shape() != [piece.length]:
                raise CheckpointError(f"{where}: '{piece.key}' is not fp32 [{piece.length}]")
            return stored[begin:end]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{where}: '{piece.key}' cannot be read: {error}") from error

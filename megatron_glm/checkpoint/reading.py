"""Reading a checkpoint: any flat range of any parameter, whoever wrote it."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from megatron_glm.checkpoint.fingerprint import FINGERPRINT_MODULUS, fingerprint, fingerprint_key
from megatron_glm.checkpoint.fingerprint_file import fingerprints_from_json
from megatron_glm.checkpoint.format import (
    FINGERPRINTS,
    KINDS,
    PARAMETERS,
    STATE,
    Fragment,
    Kind,
    is_attachment,
)
from megatron_glm.checkpoint.index import Index, Piece
from megatron_glm.checkpoint.manifest import verify_checkpoint
from megatron_glm.errors import CheckpointError
from megatron_glm.json_reading import json_object
from megatron_glm.parallel.rectangles import Rectangle, flat_range

_HASHED_ELEMENTS = 1 << 24
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
        self._index.check_room(self._manifest.sizes, str(path / PARAMETERS))
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
        return self.read_rectangle(name, kind, Rectangle(0, start, 1, stop - start, size))

    def read_rectangle(self, name: str, kind: Kind, wanted: Rectangle) -> Tensor:
        """Some columns of some rows of a parameter: fp32 [rows · width], one row after another.

        Raises:
            CheckpointError: the checkpoint has no such parameter.
        """
        self._size(name)
        # Whatever has more than one row gives the grid: a parameter is cut in one way only.
        stride = wanted.stride if wanted.rows > 1 else self._index.stride(name, kind)
        parts = [wanted] if wanted.rows > 1 else list(flat_range(wanted.start, wanted.start + wanted.width, stride))
        values = torch.empty(wanted.size, dtype=torch.float32)
        for piece in self._index.pieces(name, kind):
            if piece.start >= wanted.end:
                break
            for stored in piece.rectangles(stride):
                for part in parts:
                    self._copy(piece, stored, part, values)
        return values

    def _copy(self, piece: Piece, stored: Rectangle, part: Rectangle, values: Tensor) -> None:
        """Copy the elements that a stored rectangle and a wanted one share; both are on the same grid."""
        (row, column), (part_row, part_column) = divmod(stored.start, stored.stride), divmod(part.start, part.stride)
        top, bottom = max(row, part_row), min(row + stored.rows, part_row + part.rows)
        left, right = max(column, part_column), min(column + stored.width, part_column + part.width)
        if top >= bottom or left >= right:
            return
        begin = stored.offset + (top - row) * stored.width
        rows = self._read_piece(piece, begin, begin + (bottom - top) * stored.width).view(-1, stored.width)
        target = values[part.offset : part.offset + part.size].view(part.rows, part.width)
        target[top - part_row : bottom - part_row, left - part_column : right - part_column] = rows[
            :, left - column : right - column
        ]

    def parameter_hashes(self) -> dict[str, str]:
        """SHA-256 of the little-endian fp32 bytes of each `name/kind`: equal under every layout."""
        return {f"{name}/{kind}": self._hash(name, kind) for name in sorted(self.shapes) for kind in KINDS}

    def fingerprints(self) -> dict[str, int]:
        """Of each `name/kind`, as they were when it was saved; computed anew where an older version stored none."""
        if FINGERPRINTS not in self._manifest.files:
            return self.computed_fingerprints()
        return fingerprints_from_json(self._bytes(FINGERPRINTS), self.shapes, str(self.path / FINGERPRINTS))

    def computed_fingerprints(self) -> dict[str, int]:
        """Of each `name/kind`, from the values that are read."""
        names = [(name, kind) for name in sorted(self.shapes) for kind in KINDS]
        return {
            fingerprint_key(*place): sum(map(fingerprint, self._parts(*place))) % FINGERPRINT_MODULUS for place in names
        }

    def attachments(self) -> dict[str, bytes]:
        """The further files that were saved, by relative path."""
        return {name: self._bytes(name) for name in self._manifest.files if is_attachment(name)}

    def _size(self, name: str) -> int:
        if name not in self.shapes:
            raise CheckpointError(f"{self.path}: has no parameter '{name}' (it has {len(self.shapes)} others)")
        return math.prod(self.shapes[name])

    def _state(self) -> dict[str, Any]:
        try:
            return json_object(self._bytes(STATE))
        except ValueError as error:
            raise CheckpointError(f"{self.path / STATE}: not a state ({error}); use another checkpoint") from error

    def _bytes(self, name: str) -> bytes:
        if name not in self._manifest.files:
            raise CheckpointError(f"{self.path / name}: not in the manifest")
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{self.path / name}: cannot be read ({error.strerror})") from error

    def _hash(self, name: str, kind: Kind) -> str:
        digest = hashlib.sha256()
        for part in self._parts(name, kind):
            digest.update(memoryview(part.values.numpy()))
        return digest.hexdigest()

    def _parts(self, name: str, kind: Kind) -> Iterator[Fragment]:
        """A whole parameter, a bounded part of it at a time."""
        size = self._size(name)
        for start in range(0, size, _HASHED_ELEMENTS):
            yield Fragment(name, kind, start, self.read(name, kind, start, min(start + _HASHED_ELEMENTS, size)))

    def _read_piece(self, piece: Piece, begin: int, end: int) -> Tensor:
        where = self.path / piece.file
        try:
            if piece.file not in self._open:
                self._open[piece.file] = safe_open(where, framework="pt")
            stored = self._open[piece.file].get_slice(piece.key)
            if stored.get_dtype() != "F32" or stored.get_shape() != [piece.length]:
                raise CheckpointError(f"{where}: '{piece.key}' is not fp32 [{piece.length}]")
            return stored[begin:end]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{where}: '{piece.key}' cannot be read: {error}") from error

"""Documents that cannot be read: counted by reason, and kept for a person to look at if the run wants that."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import orjson

from data_tools.documents import Malformed
from data_tools.inputs import InputFile
from megatron_glm.data.manifest import QUARANTINE, Quarantine
from megatron_glm.files import Files, atomic_file

_COPY_BYTES = 1 << 20


class Rejects:
    """Takes the malformed documents of a unit; `counts` tells how many for which reason.

    Args:
        directory: where `quarantine.jsonl` is written; None: they are only counted.
    """

    def __init__(self, file: InputFile, directory: Path | None, files: Files):
        self.counts: Counter[str] = Counter()
        self._file, self._directory, self._files = file, directory, files
        self._stream, self._digest, self._bytes = None, sha256(), 0

    def __call__(self, malformed: Malformed) -> None:
        self.counts[f"malformed: {malformed.reason}"] += 1
        if self._directory is None:
            return
        if self._stream is None:
            self._stream: BinaryIO | None = self._files.open(self._directory / QUARANTINE)
        line = orjson.dumps(self._record(malformed)) + b"\n"
        self._digest.update(line)
        self._bytes += len(line)
        self._files.write(self._stream, line)

    def close(self) -> Quarantine | None:
        """What was written; None if nothing was."""
        if self._stream is None:
            return None
        self._files.sync(self._stream)
        self._stream.close()
        return Quarantine(documents=self.counts.total(), bytes=self._bytes, sha256=self._digest.hexdigest())

    def _record(self, malformed: Malformed) -> dict[str, str | int]:
        record = {
            "path": self._file.path,
            self._file.unit: malformed.place,
            "reason": malformed.reason,
        }
        try:
            return record | {"text": malformed.raw.decode("utf-8")}
        except UnicodeDecodeError:
            return record | {"base64": b64encode(malformed.raw).decode("ascii")}


def join_quarantines(parts: Iterable[tuple[Path, Quarantine | None]], directory: Path) -> Quarantine | None:
    """Write `directory/quarantine.jsonl` from those of the units, in their order; None if they have none."""
    parts = [(path, record) for path, record in parts if record is not None]
    if not parts:
        return None
    digest, files = sha256(), Files()
    with atomic_file(directory / QUARANTINE, files) as stream:
        for path, _ in parts:
            with open(path / QUARANTINE, "rb") as part:
                while block := part.read(_COPY_BYTES):
                    digest.update(block)
                    files.write(stream, block)
    return Quarantine(
        documents=sum(record.documents for _, record in parts),
        bytes=sum(record.bytes for _, record in parts),
        sha256=digest.hexdigest(),
    )

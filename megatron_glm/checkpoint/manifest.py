"""manifest.json: the list that makes a directory a whole checkpoint.

It is written last and signs itself, so a directory with a valid manifest has every file it needs,
and any changed bit in any of them shows.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from megatron_glm.checkpoint.format import FORMAT_VERSION, MANIFEST, check_file_name
from megatron_glm.errors import CheckpointError
from megatron_glm.files import sha256_of
from megatron_glm.json_reading import json_object, shown, string, whole_number

_READ_TOGETHER = 4  # files: one process hashes 2 GB a second, and the others wait for it at a start


@dataclass(frozen=True)
class FileRecord:
    """What a file must be: its size in bytes and the SHA-256 of its content, in hexadecimal."""

    size: int
    sha256: str

    @classmethod
    def parse(cls, record: Any) -> FileRecord:
        """Of a manifest's entry. Raises ValueError or LookupError: it is none."""
        if not isinstance(record, dict) or record.keys() != {"size", "sha256"}:
            raise ValueError(f"expected the size and the sha256 of a file, got {shown(record)}")
        return cls(whole_number(record["size"]), string(record["sha256"]))


@dataclass(frozen=True)
class Manifest:
    """The files of a checkpoint by relative path, and whose they are."""

    run_id: str
    step: int
    files: Mapping[str, FileRecord]

    def to_json(self) -> bytes:
        content = {
            "format_version": FORMAT_VERSION,
            "run_id": self.run_id,
            "step": self.step,
            "files": {name: asdict(record) for name, record in sorted(self.files.items())},
        }
        return json.dumps(content | {"sha256": _signature(content)}, indent=1).encode()

    def check_files(self, directory: Path, *, hashes: bool) -> None:
        """Raise CheckpointError naming the first file that is missing, of another size, or (`hashes`) changed."""
        try:
            for name, record in sorted(self.files.items()):
                path = directory / name
                if not path.is_file():
                    raise CheckpointError(f"{path} is missing")
                if (size := path.stat().st_size) != record.size:
                    raise CheckpointError(f"{path} has {size} bytes, the manifest says {record.size}")
            # A second pass: sizes cost nothing, and a cut file should be told before terabytes are read.
            if hashes:
                with ThreadPoolExecutor(_READ_TOGETHER) as readers:  # the order of the names is that of the errors
                    deque(readers.map(partial(self.check_hash, directory), sorted(self.files)), maxlen=0)
        except OSError as error:
            raise CheckpointError(f"{error.filename or directory}: {error.strerror}") from error

    def check_hash(self, directory: Path, name: str) -> None:
        """Raise CheckpointError if a file's content is not what was saved, OSError if it cannot be read."""
        if sha256_of(directory / name) != self.files[name].sha256:
            raise CheckpointError(f"{directory / name} was changed: its SHA-256 is not the manifest's")

    @property
    def sizes(self) -> dict[str, int]:
        """Of the files, in bytes."""
        return {name: record.size for name, record in self.files.items()}

    def unlisted_files(self, directory: Path) -> list[str]:
        """Files below `directory` that the manifest does not name; nothing ever reads them."""
        present = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir())
        return sorted(name for name in present if name not in self.files and name != MANIFEST)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a checkpoint, its own signature checked.

    Raises:
        CheckpointError: it is missing, damaged, or of another format.
    """
    path = directory / MANIFEST
    try:
        content = json_object(path.read_bytes())
        version = content["format_version"]
        if version != FORMAT_VERSION:
            raise CheckpointError(f"{path}: format version {version!r}, this program reads {FORMAT_VERSION}")
        if content.pop("sha256") != _signature(content):
            raise ValueError("changed after it was written")
        manifest = parse_manifest(content)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: the directory is not a whole checkpoint") from error
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except (LookupError, ValueError) as error:
        raise CheckpointError(f"{path}: not a checkpoint's manifest ({error})") from error
    for name in manifest.files:
        check_file_name(name)
    return manifest


def parse_manifest(content: Mapping[str, Any]) -> Manifest:
    """What a checkpoint's manifest and a release's have in common. Raises ValueError or LookupError."""
    files = content["files"]
    if not isinstance(files, dict):
        raise ValueError(f"files: expected an object, got {shown(files)}")
    records = {name: FileRecord.parse(record) for name, record in files.items()}
    return Manifest(string(content["run_id"]), whole_number(content["step"]), records)


def verify_checkpoint(directory: Path, *, hashes: bool = True) -> Manifest:
    """Check that a checkpoint is whole.

    Args:
        hashes: read every byte; otherwise only names and sizes are compared.

    Raises:
        CheckpointError: names the first file that is wrong.
    """
    manifest = read_manifest(directory)
    manifest.check_files(directory, hashes=hashes)
    return manifest


def _signature(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()

"""manifest.json: every file of a release with its size and hash, and which run it comes from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from megatron_glm.checkpoint.format import PARAMETERS
from megatron_glm.checkpoint.manifest import FileRecord, Manifest, parse_manifest
from megatron_glm.errors import CheckpointError
from megatron_glm.files import sha256_of
from megatron_glm.json_reading import json_object

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


def record_files(directory: Path) -> dict[str, FileRecord]:
    """Flush each file of the directory to the disk, and say what it is."""
    records = {}
    for path in sorted(directory.iterdir()):
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
        records[path.name] = FileRecord(path.stat().st_size, sha256_of(path))
    return records


def write_manifest(directory: Path, *, run_id: str, step: int, versions: Mapping[str, str]) -> None:
    """List all files there are; called last."""
    content = {
        "format_version": FORMAT_VERSION,
        "run_id": run_id,
        "step": step,
        "versions": dict(versions),
        "files": {name: asdict(record) for name, record in record_files(directory).items()},
    }
    with open(directory / MANIFEST, "x", encoding="utf-8") as stream:
        stream.write(json.dumps(content, indent=2) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def check_release(directory: Path) -> Manifest:
    """Check every byte of a release; returns what is in it.

    Raises:
        CheckpointError: no release, or a file that is missing or changed.
    """
    path = directory / MANIFEST
    if (directory / PARAMETERS).exists():
        raise CheckpointError(f"'{directory}' is a checkpoint; make a release of it with glm export")
    try:
        content = json_object(path.read_bytes())
        if content["format_version"] != FORMAT_VERSION:
            raise CheckpointError(
                f"{path}: format version {content['format_version']!r}, this program reads {FORMAT_VERSION}"
            )
        manifest = parse_manifest(content)
    except OSError as error:
        raise CheckpointError(f"no release in '{directory}' (expected {MANIFEST}; make one with glm export)") from error
    except (LookupError, ValueError) as error:
        raise CheckpointError(f"{path}: not the manifest of a release ({error}); copy the release again") from error
    if foreign := [name for name in manifest.files if Path(name).name != name]:
        raise CheckpointError(f"{path}: {foreign[0]!r} is no file of a release; copy the release again")
    manifest.check_files(directory, hashes=True)
    return manifest

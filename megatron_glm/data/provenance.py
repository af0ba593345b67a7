"""Where a document came from: each shard has a file of the places of its documents, which training never opens.

`<name>.origins` holds one int64, little-endian, for each document: the offset of its first byte in the input (in the
decompressed content, if the input is compressed), or its row in a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from megatron_glm.data.manifest import Manifest, SplitName
from megatron_glm.errors import DataError

ORIGIN_BYTES = 8


@dataclass(frozen=True)
class DocumentOrigin:
    """The input file of a document, as the manifest names it, and its first byte or its row there, from 0."""

    path: str
    place: int
    unit: Literal["byte", "row"]


def origins_path(prefix: Path) -> Path:
    """The file of the places of a shard's documents."""
    return prefix.with_name(f"{prefix.name}.origins")


def document_origin(directory: Path, manifest: Manifest, split: SplitName, document: int) -> DocumentOrigin:
    """Where a document of a split came from: one read, and one step a shard.

    Args:
        document: its number in the split, from 0.

    Raises:
        IndexError: there is no such document.
        DataError: the shard's origins cannot be read.
    """
    left = document
    for shard in manifest.split(split).shards:
        if 0 <= left < shard.documents:
            source = manifest.inputs[shard.input]
            return DocumentOrigin(source.path, _place(origins_path(directory / split / shard.name), left), source.unit)
        left -= shard.documents
    raise IndexError(f"document {document} lies outside range({manifest.split(split).documents})")


def _place(path: Path, document: int) -> int:
    try:
        with open(path, "rb") as stream:
            stream.seek(document * ORIGIN_BYTES)
            entry = stream.read(ORIGIN_BYTES)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}, the manifest lists it; copy the directory again") from error
    if len(entry) != ORIGIN_BYTES:
        raise DataError(f"{path}: has no entry for document {document}; copy the directory again")
    return int.from_bytes(entry, "little", signed=True)

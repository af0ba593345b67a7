"""What tells documents from others of the same size: compared when a run is continued.

Of a data directory it is made of the hashes in its manifest, so every byte counts. Pairs of Megatron carry no
hashes, and reading a corpus at every start would take hours: of them the sizes count, and blocks spread evenly
over both files, the first and the last among them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from megatron_glm.config.phases import all_sources, run_phases
from megatron_glm.config.schema import Config, Source
from megatron_glm.data.file_array import ReadOnlyFile
from megatron_glm.data.manifest import Manifest, read_manifest
from megatron_glm.data.pair_format import bin_path, idx_path
from megatron_glm.data.prefixes import expand
from megatron_glm.errors import DataError

_BLOCK_BYTES = 4096
_BLOCKS = 4096  # of all pairs of a source together, 16 MB
_LEAST_BLOCKS = 4  # of a file


def source_fingerprints(config: Config) -> tuple[str, ...]:
    """A hash of the training documents of each source of a run, wherever they lie, in the order of `all_sources`.

    Raises:
        DataError: files that are missing or cannot be read.
    """
    return tuple(_source_fingerprint(source, field) for field, source in all_sources(run_phases(config)))


def _source_fingerprint(source: Source, field: str) -> str:
    try:
        if source.path is None:
            return pairs_fingerprint(expand(source.prefixes or ()))
        return manifest_fingerprint(read_manifest(Path(source.path)))
    except DataError as error:
        raise DataError(f"{field}: {error}") from error


def manifest_fingerprint(manifest: Manifest) -> str:
    """Of all that a reader takes from the training split: its ids, its documents, and how they are to be read."""
    shards = [(shard.documents, shard.bin_sha256, shard.idx_sha256) for shard in manifest.splits.train.shards]
    told = [manifest.dtype, manifest.append_eos, manifest.options.sentences, shards]
    return sha256(json.dumps(told).encode()).hexdigest()


def pairs_fingerprint(prefixes: Sequence[Path]) -> str:
    """Of the sizes of pairs, in their order, and of blocks of their content.

    Raises:
        DataError: a file cannot be read.
    """
    digest = sha256()
    blocks = max(_LEAST_BLOCKS, _BLOCKS // max(1, 2 * len(prefixes)))
    for prefix in prefixes:
        for path in (idx_path(prefix), bin_path(prefix)):
            try:
                file = ReadOnlyFile(path)
            except OSError as error:
                raise DataError(f"{path}: {error.strerror} (a .bin and an .idx make a pair)") from error
            digest.update(file.size.to_bytes(8, "little"))
            last = max(0, file.size - _BLOCK_BYTES)
            for start in np.unique(np.linspace(0, last, blocks).astype(np.int64)).tolist():
                digest.update(file.read(start, min(_BLOCK_BYTES, file.size - start)))
    return digest.hexdigest()

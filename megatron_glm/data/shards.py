"""The shards of a split, read as one sequence of documents.

Opening a set reads the manifest and asks for the size of every file, nothing more.
"""

from __future__ import annotations

from pathlib import Path

from megatron_glm.data.manifest import SplitName, read_manifest
from megatron_glm.data.pair_format import bin_path, idx_path
from megatron_glm.data.pair_set import OPEN_PAIRS, Pair, PairSet
from megatron_glm.errors import DataError


class ShardSet(PairSet):
    """One split of a data directory (`manifest.json`, `train/`, `held_out/`).

    Attributes:
        directory, split: as they were given.

    Raises:
        DataError: no manifest, or a file is missing or of another size than the manifest says.
    """

    def __init__(self, directory: Path, split: SplitName, *, open_pairs: int = OPEN_PAIRS):
        manifest = read_manifest(directory)
        self.directory, self.split = directory, split
        self.manifest = manifest.model_dump()
        pairs = []
        for shard in manifest.split(split).shards:
            pair = Pair(directory / split / shard.name, shard.documents, shard.tokens)
            _check_size(bin_path(pair.prefix), shard.bin_bytes)
            _check_size(idx_path(pair.prefix), shard.idx_bytes)
            pairs.append(pair)
        super().__init__(
            pairs,
            ends_with_eos=manifest.append_eos,
            has_sentences=manifest.options.sentences,
            num_ids=manifest.tokenizer.vocab_size,
            advice="copy the directory again, python -m data_tools.verify --full tells what else is damaged",
            open_pairs=open_pairs,
        )


def _check_size(path: Path, expected: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}, the manifest lists it; copy the directory again") from error
    if size != expected:
        raise DataError(f"{path}: {size} bytes, the manifest says {expected}; copy the directory again")

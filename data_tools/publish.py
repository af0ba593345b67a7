"""From the shards of many units to one data directory: numbering, places, manifest."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import megatron_glm
from data_tools.inputs import InputFile
from data_tools.units import Job, Unit, UnitResult
from megatron_glm.data.indexed import bin_path, dtype_for, idx_path
from megatron_glm.data.manifest import (
    MANIFEST,
    SPLITS,
    Input,
    Manifest,
    Options,
    Probe,
    Shard,
    Split,
    SplitName,
    Splits,
    TokenizerRecord,
)
from megatron_glm.files import Files, atomic_file
from megatron_glm.tokenizer.base import Tokenizer

_PROBES = ("Hello, world!", "The quick brown fox jumps over 13 lazy dogs.", "naïve café\n[MASK] 你好。")
_LIBRARIES = ("numpy", "sentencepiece", "tokenizers")


def place_shards(job: Job, units: Sequence[Unit], results: Mapping[Unit, UnitResult], directory: Path) -> Splits:
    """Move the shards of all units to `directory/<split>/00000.bin` …, in the order of the units."""
    splits = {split: _place_split(job, units, results, directory, split) for split in SPLITS}
    return Splits(train=splits["train"], held_out=splits["held_out"])


def take_back_shards(job: Job, units: Sequence[Unit], results: Mapping[Unit, UnitResult], directory: Path) -> None:
    """Undo a placing that was cut short: every shard goes back to its unit, where it will be verified."""
    (directory / MANIFEST).unlink(missing_ok=True)
    for split in SPLITS:
        if len(results) == len(units):  # placing begins when all are finished
            for old, new, _ in _places(job, units, results, directory, split):
                for path in (bin_path, idx_path):
                    if path(new).exists():
                        os.rename(path(new), path(old))
        if (directory / split).exists():
            shutil.rmtree(directory / split)


def describe_inputs(
    inputs: Sequence[InputFile], hashes: Mapping[str, str], results: Mapping[Unit, UnitResult]
) -> tuple[Input, ...]:
    """What became of the documents of every input."""
    records = []
    for file in inputs:
        parts = [result for unit, result in results.items() if unit.part.input is file]
        dropped: Counter[str] = Counter()
        for part in parts:
            dropped.update(part.dropped)
        documents = sum(part.documents_in for part in parts)
        repaired = sum(part.repaired for part in parts)
        records.append(
            Input(
                path=file.path,
                bytes=file.bytes,
                sha256=hashes[file.path],
                documents_in=documents,
                documents_out=documents - dropped.total(),
                dropped=dict(sorted(dropped.items())),
                repaired={"lone surrogates": repaired} if repaired else {},
            )
        )
    return tuple(records)


def write_manifest(
    directory: Path, tokenizer: Tokenizer, splits: Splits, inputs: tuple[Input, ...], options: Options
) -> Manifest:
    """Write `manifest.json`, the last file of the directory."""
    manifest = Manifest(
        tokenizer=TokenizerRecord(
            hash=tokenizer.content_hash,
            kind=tokenizer.kind,
            vocab_size=tokenizer.vocab_size,
            special=asdict(tokenizer.special),
            probes=tuple(Probe(text=text, ids=tuple(tokenizer.encode(text).tolist())) for text in _PROBES),
        ),
        dtype=dtype_for(tokenizer.vocab_size).name,
        append_eos=True,
        splits=splits,
        inputs=inputs,
        options=options,
        versions=library_versions(),
    )
    with atomic_file(directory / MANIFEST) as stream:
        stream.write(manifest.model_dump_json(indent=1).encode("utf-8") + b"\n")
    return manifest


def _place_split(
    job: Job, units: Sequence[Unit], results: Mapping[Unit, UnitResult], directory: Path, split: SplitName
) -> Split:
    target = directory / split
    target.mkdir()
    shards: list[Shard] = []
    for old, new, shard in _places(job, units, results, directory, split):
        os.rename(bin_path(old), bin_path(new))
        os.rename(idx_path(old), idx_path(new))
        shards.append(shard.model_copy(update={"name": new.name}))
    Files().sync_directory(target)
    return Split(
        shards=tuple(shards),
        documents=sum(shard.documents for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
    )


def _places(
    job: Job, units: Sequence[Unit], results: Mapping[Unit, UnitResult], directory: Path, split: SplitName
) -> Iterator[tuple[Path, Path, Shard]]:
    """Where every shard of a split is written, where it goes, and its record."""
    number = 0
    for unit in units:
        for shard in results[unit].shards[split]:
            yield unit.directory(job) / split / shard.name, directory / split / f"{number:05d}", shard
            number += 1


def library_versions() -> dict[str, str]:
    """The versions that may decide the ids."""
    versions = {"megatron_glm": megatron_glm.__version__}
    for library in _LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:  # only one of the tokenizers' libraries is needed
            continue
    return versions

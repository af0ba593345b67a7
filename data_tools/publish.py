"""From the shards of many units to one data directory: numbering, places, manifest."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import megatron_glm
from data_tools.inputs import InputFile
from data_tools.quarantine import join_quarantines
from data_tools.tokenizing import UnitResult
from data_tools.units import Job, Unit
from megatron_glm.data.manifest import (
    MANIFEST,
    QUARANTINE,
    SPLITS,
    Input,
    InputPart,
    Manifest,
    Options,
    Probe,
    Quarantine,
    Shard,
    Split,
    SplitName,
    Splits,
    TokenizerRecord,
    save_manifest,
)
from megatron_glm.data.pair_format import bin_path, dtype_for, idx_path
from megatron_glm.data.provenance import origins_path
from megatron_glm.errors import DataError
from megatron_glm.files import Files
from megatron_glm.tokenizer.base import Tokenizer

_PROBES = ("Hello, world!", "The quick brown fox jumps over 13 lazy dogs.", "naïve café\n[MASK] 你好。")
_LIBRARIES = ("numpy", "sentencepiece", "tokenizers")
_FILES_OF_A_SHARD: tuple[Callable[[Path], Path], ...] = (bin_path, idx_path, origins_path)


def check_output(output: Path) -> None:
    """Refuse a name that a finished directory could not be renamed to, before there is any work to lose.

    Raises:
        DataError: `output` ends with no name, is a symbolic link, or lies below a file.
    """
    if not output.name:
        raise DataError(f"--output: '{output}' exists already; name a new directory")
    if output.is_symlink():
        raise DataError(f"--output: '{output}' is a symbolic link; name the directory that it should lead to")
    parent = next(path for path in output.absolute().parents if path.exists())
    if not parent.is_dir():
        raise DataError(f"--output: '{output}' cannot be below '{parent}', which is a file; name another directory")


def place_shards(job: Job, units: Sequence[Unit], results: Mapping[Unit, UnitResult], directory: Path) -> Splits:
    """Move the shards of all units to `directory/<split>/00000.bin` …, in the order of the units."""
    splits = {split: _place_split(job, units, results, directory, split) for split in SPLITS}
    return Splits(train=splits["train"], held_out=splits["held_out"])


def take_back_shards(job: Job, units: Sequence[Unit], results: Mapping[Unit, UnitResult], directory: Path) -> None:
    """Undo a placing that was cut short: every shard goes back to its unit, where it will be verified."""
    for name in (MANIFEST, QUARANTINE):
        (directory / name).unlink(missing_ok=True)
    for split in SPLITS:
        if len(results) == len(units):  # placing begins when all are finished
            for old, new, _ in _places(job, units, results, directory, split):
                for path in _FILES_OF_A_SHARD:
                    if path(new).exists():
                        os.rename(path(new), path(old))
        if (directory / split).exists():
            shutil.rmtree(directory / split)


def describe_inputs(
    inputs: Sequence[InputFile], units: Sequence[Unit], results: Mapping[Unit, UnitResult]
) -> tuple[Input, ...]:
    """What was read of every input, and what became of its documents."""
    by_input: list[list[UnitResult]] = [[] for _ in inputs]
    for unit in units:
        by_input[unit.input].append(results[unit])
    records = []
    for file, parts in zip(inputs, by_input, strict=True):
        dropped: Counter[str] = Counter()
        for part in parts:
            dropped.update(part.dropped)
        documents = sum(part.documents_in for part in parts)
        repaired = sum(part.repaired for part in parts)
        records.append(
            Input(
                path=file.path,
                unit=file.unit,
                bytes=file.bytes,
                parts=tuple(InputPart(bytes=part.amount.input_bytes, xxh3_128=part.input_checksum) for part in parts),
                documents_in=documents,
                documents_out=documents - dropped.total(),
                dropped=dict(sorted(dropped.items())),
                repaired={"lone surrogates": repaired} if repaired else {},
            )
        )
    return tuple(records)


def write_quarantine(
    job: Job, units: Sequence[Unit], results: Mapping[Unit, UnitResult], directory: Path
) -> Quarantine | None:
    """Write `quarantine.jsonl`, what could not be read of all units in their order; None if there is nothing."""
    return join_quarantines(((unit.directory(job), results[unit].quarantine) for unit in units), directory)


def write_manifest(
    directory: Path,
    tokenizer: Tokenizer,
    *,
    splits: Splits,
    inputs: tuple[Input, ...],
    quarantine: Quarantine | None,
    options: Options,
    versions: dict[str, str],
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
        quarantine=quarantine,
        options=options,
        versions=versions,
    )
    save_manifest(directory, manifest)
    return manifest


def _place_split(
    job: Job, units: Sequence[Unit], results: Mapping[Unit, UnitResult], directory: Path, split: SplitName
) -> Split:
    target = directory / split
    target.mkdir()
    shards: list[Shard] = []
    for old, new, shard in _places(job, units, results, directory, split):
        for path in _FILES_OF_A_SHARD:
            os.rename(path(old), path(new))
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


def library_versions(*others: str) -> dict[str, str]:
    """The versions that may decide the output, `others` are libraries that this run uses."""
    versions = {"megatron_glm": megatron_glm.__version__}
    for library in (*_LIBRARIES, *others):
        try:
            versions[library] = version(library)
        except PackageNotFoundError:  # only one of the tokenizers' libraries is needed
            continue
    return versions

"""The work of preprocessing, in units that any process can do alone.

A unit is a part of one input file. It writes its own shards into a directory of its own, so what
comes out does not depend on how many processes there are, nor on which of them does what; only
counts and hashes travel back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np

from data_tools.documents import DocumentReader
from data_tools.inputs import InputFile, Range, cut
from data_tools.split_writer import SplitWriter
from megatron_glm.data.indexed import dtype_for
from megatron_glm.data.manifest import SPLITS, Shard, SplitName
from megatron_glm.errors import DataError
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.loading import load_tokenizer

_LEAST_UNIT, _LARGEST_UNIT = 1 << 22, 1 << 28  # bytes
_UNITS = 256
_BATCH_BYTES, _BATCH_DOCUMENTS = 1 << 20, 4096
_REPORT_SECONDS = 0.5
STOP_FILE = "stop"  # beside the units' directories: every unit ends when it appears
_PROGRESS_FILE = "progress"


@dataclass(frozen=True)
class Job:
    """What all units of a run have in common."""

    directory: Path
    tokenizer: str
    tokenizer_hash: str
    text_key: str
    held_out: float
    shard_tokens: int


@dataclass(frozen=True)
class Unit:
    """One part of one input."""

    number: int
    part: Range

    def directory(self, job: Job) -> Path:
        return job.directory / f"{self.number:06d}"


@dataclass(frozen=True)
class Amount:
    """How much was done: bytes of the input file, bytes of UTF-8 text, tokens with eos."""

    input_bytes: int = 0
    text_bytes: int = 0
    tokens: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.input_bytes + other.input_bytes, self.text_bytes + other.text_bytes, self.tokens + other.tokens
        )


@dataclass(frozen=True)
class UnitResult:
    """What a unit did; its shards lie in its directory as `<split>/<shard.name>.bin`."""

    amount: Amount
    documents_in: int
    dropped: dict[str, int]
    repaired: int
    shards: dict[SplitName, list[Shard]]


class StoppedError(Exception):
    """Another unit has failed, so this one has given up."""


def plan_units(inputs: Sequence[InputFile], unit_bytes: int | None = None) -> list[Unit]:
    """The units of a run, in the order of their shards.

    The size depends on the inputs alone: small corpora get small units, so that all processes have
    work, and large ones few enough shards.
    """
    if unit_bytes is None:
        total = sum(file.bytes for file in inputs)
        unit_bytes = min(max(total // _UNITS, _LEAST_UNIT), _LARGEST_UNIT)
    parts = [part for file in inputs for part in cut(file, unit_bytes)]
    return [Unit(number, part) for number, part in enumerate(parts)]


def is_held_out(text: bytes, share: float) -> bool:
    """Whether a document is held out: by its own hash, so that adding data moves no document."""
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") < share * 2**64


def run_unit(unit: Unit, job: Job) -> UnitResult:
    """Tokenize a unit and write its shards.

    Raises:
        DataError: the input is wrong, or the tokenizer is no longer the one of the run.
        StoppedError: the run has failed elsewhere.
    """
    tokenizer = _tokenizer(job.tokenizer, job.tokenizer_hash)
    directory = unit.directory(job)
    for split in SPLITS:
        (directory / split).mkdir(parents=True)
    vocab_size = tokenizer.vocab_size
    writers = {
        split: SplitWriter(directory / split, dtype_for(vocab_size), vocab_size, job.shard_tokens) for split in SPLITS
    }
    reader = DocumentReader(unit.part, job.text_key)
    documents_in = text_bytes = 0
    dropped: dict[str, int] = {}
    report = _Reporter(directory)
    for batch in _batches(reader):
        if (job.directory / STOP_FILE).exists():
            raise StoppedError
        documents_in += len(batch)
        kept = [text for text in batch if text.strip()]
        _count(dropped, "empty", len(batch) - len(kept))
        for text, ids in zip(kept, tokenizer.encode_batch(kept), strict=True):
            if not len(ids):  # only zero-width characters, say
                _count(dropped, "no tokens", 1)
                continue
            raw = text.encode("utf-8")
            text_bytes += len(raw)
            split = "held_out" if is_held_out(raw, job.held_out) else "train"
            writers[split].add(np.append(ids, tokenizer.special.eos))
        tokens = sum(writer.num_tokens for writer in writers.values())
        report(Amount(reader.bytes_read, text_bytes, tokens))
    tokens = sum(writer.num_tokens for writer in writers.values())
    shards = {split: writer.close() for split, writer in writers.items()}
    amount = Amount(unit.part.stop - unit.part.start, text_bytes, tokens)
    return UnitResult(amount, documents_in, dropped, reader.repaired, shards)


def amount_so_far(unit: Unit, job: Job) -> Amount:
    """What a unit that is being worked on has reported last."""
    try:
        text = (unit.directory(job) / _PROGRESS_FILE).read_text()
    except FileNotFoundError:
        return Amount()
    return Amount(*map(int, text.split()))


class _Reporter:
    """Leaves the progress of a unit in a file: that works for any kind of executor."""

    def __init__(self, directory: Path):
        self._path = directory / _PROGRESS_FILE
        self._last = time.monotonic()

    def __call__(self, amount: Amount) -> None:
        if time.monotonic() - self._last < _REPORT_SECONDS:
            return
        self._last = time.monotonic()
        temporary = self._path.with_suffix(".new")
        temporary.write_text(f"{amount.input_bytes} {amount.text_bytes} {amount.tokens}")
        os.replace(temporary, self._path)


@cache
def _tokenizer(directory: str, content_hash: str) -> Tokenizer:
    """Loaded once in a process, and used for all its units."""
    tokenizer = load_tokenizer(directory)
    if tokenizer.content_hash != content_hash:
        raise DataError(f"'{directory}': the tokenizer was changed during the run; start again")
    return tokenizer


def _batches(documents: DocumentReader) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in documents:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _count(counts: dict[str, int], reason: str, number: int) -> None:
    if number:
        counts[reason] = counts.get(reason, 0) + number

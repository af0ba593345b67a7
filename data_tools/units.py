"""The work of preprocessing, in units that any process can do alone.

A unit is a part of one input file. It writes its own shards into a directory of its own, so what
comes out does not depend on how many processes there are, nor on which of them does what; only
counts and hashes travel back.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b, sha256
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from data_tools.documents import DocumentReader
from data_tools.inputs import InputFile, Range, cut
from data_tools.split_writer import SplitWriter
from data_tools.workers import ResumableError
from megatron_glm.data.indexed import bin_path, dtype_for, idx_path
from megatron_glm.data.manifest import SPLITS, Shard, SplitName
from megatron_glm.files import Files, atomic_file, sha256_of
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.loading import load_tokenizer

_LEAST_UNIT, _LARGEST_UNIT = 1 << 22, 1 << 28  # bytes
_UNITS = 256
_BATCH_BYTES, _BATCH_DOCUMENTS = 1 << 20, 4096
_REPORT_SECONDS = 0.5
STOP_FILE = "stop"  # beside the units' directories: every unit ends when it appears
_RESULT_FILE = "result.json"  # in the directory of a finished unit
_PROGRESS_FILE = "progress"
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Job:
    """What all units of a run have in common.

    Args:
        attempt: another for each start of the run, so that a worker whose parent was killed, and that is about
            to notice it, shares no file with the workers of the next start.
    """

    directory: Path
    tokenizer: str
    tokenizer_hash: str
    text_key: str
    held_out: float
    shard_tokens: int
    attempt: str = "0"


@dataclass(frozen=True)
class Unit:
    """One part of one input."""

    number: int
    part: Range

    def directory(self, job: Job) -> Path:
        """Where the finished unit is."""
        return job.directory / f"{self.number:06d}"

    def work_directory(self, job: Job) -> Path:
        """Where this start of the run works on it."""
        return job.directory / f"{self.number:06d}.{job.attempt}"


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
    """What a unit did; its shards lie in its directory as `<split>/<shard.name>.bin`.

    Args:
        input_sha256: of the part of the input that it read.
    """

    input_sha256: str
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
    """Tokenize a unit and write its shards; a unit that is finished already is read through and kept.

    Raises:
        DataError: the input is wrong.
        ResumableError: the tokenizer is no longer the one of the run, or the unit is finished and its input has
            changed since.
        StoppedError: the run has failed elsewhere.
    """
    if (finished := _finished(unit, job)) is not None:
        return finished
    directory = unit.work_directory(job)
    result = _tokenize(unit, job, directory)
    with atomic_file(directory / _RESULT_FILE) as stream:
        stream.write(TypeAdapter(UnitResult).dump_json(result))
    (directory / _PROGRESS_FILE).unlink(missing_ok=True)
    if unit.directory(job).exists():  # its files are damaged
        shutil.rmtree(unit.directory(job))
    os.rename(directory, unit.directory(job))
    Files().sync_directory(job.directory)
    return result


def read_result(unit: Unit, job: Job) -> UnitResult | None:
    """The record of a finished unit, taken at its word; None without a readable one."""
    try:
        return TypeAdapter(UnitResult).validate_json((unit.directory(job) / _RESULT_FILE).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _finished(unit: Unit, job: Job) -> UnitResult | None:
    """The result of a unit whose every byte is as recorded, input and shards; None if it is to be done."""
    result = read_result(unit, job)
    if result is None:
        return None
    for split, shards in result.shards.items():
        for shard in shards:
            prefix = unit.directory(job) / split / shard.name
            for path, size, digest in (
                (bin_path(prefix), shard.bin_bytes, shard.bin_sha256),
                (idx_path(prefix), shard.idx_bytes, shard.idx_sha256),
            ):
                if not path.exists() or path.stat().st_size != size or sha256_of(path) != digest:
                    return None
    if _sha256_of_part(unit.part) != result.input_sha256:
        raise ResumableError(
            f"--input: '{unit.part.input.path}' was changed since a part of it was tokenized; "
            "give what it was, or start anew with --restart"
        )
    return result


def _sha256_of_part(part: Range) -> str:
    digest, left = sha256(), part.stop - part.start
    with open(part.input.path, "rb") as stream:
        stream.seek(part.start)
        while left and (block := stream.read(min(left, _COPY_BYTES))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def _tokenize(unit: Unit, job: Job, directory: Path) -> UnitResult:
    digest = _sha256_of_part(unit.part)
    tokenizer = _tokenizer(job.tokenizer, job.tokenizer_hash)
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
    for batch in batches(reader):
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
    return UnitResult(digest, amount, documents_in, dropped, reader.repaired, shards)


def amount_so_far(unit: Unit, job: Job) -> Amount:
    """What a unit that is being worked on has reported last."""
    try:
        text = (unit.work_directory(job) / _PROGRESS_FILE).read_text()
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
        raise ResumableError(f"'{directory}': the tokenizer was changed during the run; start again")
    return tokenizer


def batches(documents: DocumentReader) -> Iterator[list[str]]:
    """The documents in batches of about a megabyte, for the tokenizer."""
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

"""The work of preprocessing, in units that any process can do alone.

A unit is a part of one input file. It leaves what it made in a directory of its own, so what comes
out does not depend on how many processes there are, nor on which of them does what; only counts and
hashes travel back. Each phase of a run does all units: see dedupe.py and tokenizing.py.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from data_tools.background_sync import BackgroundSync
from data_tools.documents import DocumentReader
from data_tools.inputs import InputFile, Range, cut
from data_tools.part_stream import checksum_of_part
from data_tools.workers import ResumableError
from megatron_glm.data.manifest import DedupePolicy, MalformedPolicy
from megatron_glm.files import Files, atomic_file, sha256_of

_LEAST_UNIT, _LARGEST_UNIT = 1 << 22, 1 << 28  # bytes
_UNITS = 64  # fewer for a small corpus would leave processes idle; more are files to flush
_BATCH_CHARACTERS, _BATCH_DOCUMENTS = 1 << 19, 4096  # a block of JSON lines is a batch
_REPORT_SECONDS = 0.5
STOP_FILE = "stop"  # beside the units' directories: every unit ends when it appears
_RESULT_FILE = "result.json"  # in the directory of a finished unit
_PROGRESS_FILE = "progress"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """What all units of a run have in common.

    Args:
        attempt: another for each start of the run, so that a worker whose parent was killed, and that is about
            to notice it, shares no file with the workers of the next start.
        sort_records: documents whose hashes a process holds in memory at a time, to find duplicates.
        fast: the ids come from a fast back end of the tokenizer.
    """

    directory: Path
    tokenizer: str
    tokenizer_hash: str
    text_key: str
    held_out: float
    shard_tokens: int
    attempt: str = "0"
    malformed: MalformedPolicy = "fail"
    min_tokens: int = 0
    dedupe: DedupePolicy = "none"
    sort_records: int = 1 << 20
    sentences: bool = False
    fast: bool = False


@dataclass(frozen=True)
class Unit:
    """One part of one input, which is the `input`th of the run."""

    number: int
    part: Range
    input: int

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
    parts = [(number, part) for number, file in enumerate(inputs) for part in cut(file, unit_bytes)]
    return [Unit(number, part, file) for number, (file, part) in enumerate(parts)]


def do_unit(
    unit: Unit,
    job: Job,
    kind: type[Result],
    work: Callable[[Path, Files], Result],
    whole: Callable[[Result], bool],
) -> Result:
    """Do the work of a unit in a directory of its own; one that is finished already is looked through and kept.

    Args:
        kind: of the result: it has `input_checksum`, of the part of the input that was read.
        work: fills the directory it is given, through the files it is given.
        whole: whether all that a recorded result tells of is there, byte for byte.

    Raises:
        ResumableError: the unit is finished, and its input has changed since.
        Whatever `work` raises.
    """
    result = read_result(unit, job, kind)
    if result is not None and whole(result):
        if checksum_of_part(unit.part) != result.input_checksum:
            raise ResumableError(
                f"--input: '{unit.part.input.path}' was changed since a part of it was read; "
                "give what it was, or start anew with --restart"
            )
        return result
    directory = unit.work_directory(job)
    directory.mkdir()
    with BackgroundSync() as files:
        result = work(directory, files)
        with atomic_file(directory / _RESULT_FILE, files) as stream:
            files.write(stream, _adapter(kind).dump_json(result))
    (directory / _PROGRESS_FILE).unlink(missing_ok=True)
    if unit.directory(job).exists():  # its files are damaged
        shutil.rmtree(unit.directory(job))
    # If the machine fails before the disk knows the name, the next start does the unit again.
    os.rename(directory, unit.directory(job))
    return result


def read_result(unit: Unit, job: Job, kind: type[Result]) -> Result | None:
    """The record of a finished unit, taken at its word; None without a readable one."""
    try:
        return _adapter(kind).validate_json((unit.directory(job) / _RESULT_FILE).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


@cache
def _adapter(kind: type[Result]) -> TypeAdapter[Result]:
    return TypeAdapter(kind)  # it takes milliseconds, and there may be many thousand units


def are_whole(files: Iterable[tuple[Path, int, str]]) -> bool:
    """Whether files (path, size in bytes, SHA-256) are there, byte for byte."""
    return all(
        path.exists() and path.stat().st_size == size and sha256_of(path) == digest for path, size, digest in files
    )


def amount_so_far(unit: Unit, job: Job) -> Amount:
    """What a unit that is being worked on has reported last."""
    try:
        text = (unit.work_directory(job) / _PROGRESS_FILE).read_text()
    except FileNotFoundError:
        return Amount()
    return Amount(*map(int, text.split()))


class Reporter:
    """Leaves the progress of a unit in a file, and ends it when the run has failed: for any kind of executor."""

    def __init__(self, job: Job, directory: Path):
        self._path, self._stop = directory / _PROGRESS_FILE, job.directory / STOP_FILE
        self._last = time.monotonic()

    def __call__(self, amount: Amount) -> None:
        """To be called once a batch.

        Raises:
            StoppedError: the run has failed elsewhere.
        """
        if self._stop.exists():
            raise StoppedError
        if time.monotonic() - self._last < _REPORT_SECONDS:
            return
        self._last = time.monotonic()
        temporary = self._path.with_suffix(".new")
        temporary.write_text(f"{amount.input_bytes} {amount.text_bytes} {amount.tokens}")
        os.replace(temporary, self._path)


def batches(documents: DocumentReader) -> Iterator[tuple[list[str], np.ndarray]]:
    """The documents in batches of about a megabyte: texts, and the place of each, int64 [d]."""
    texts: list[str] = []
    places: list[int] = []
    size = 0
    for more, more_places in documents.blocks():
        texts += more
        places += more_places
        size += sum(map(len, more))
        if size >= _BATCH_CHARACTERS or len(texts) >= _BATCH_DOCUMENTS:
            yield from _in_batches(texts, places)
            texts, places, size = [], [], 0
    yield from _in_batches(texts, places)


def _in_batches(texts: list[str], places: list[int]) -> Iterator[tuple[list[str], np.ndarray]]:
    for first in range(0, len(texts), _BATCH_DOCUMENTS):
        end = first + _BATCH_DOCUMENTS
        yield texts[first:end], np.array(places[first:end], np.int64)


def is_empty(text: str) -> bool:
    """Whether a document is nothing but white space."""
    return not text or text.isspace()

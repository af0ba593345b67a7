"""Exact duplicates: found before anything is tokenized, in bounded memory, the same for any number of workers.

Every unit leaves the 128-bit hashes of its documents in sorted runs. The space of hashes is cut into buckets; of a
bucket the hashes of all runs are sorted together, and of equal ones all but the first document of the run are
duplicates. What a run holds is free of its own repetitions, so that a document that occurs a million times fills no
bucket. Two different documents of 10**9 have one hash with a probability of 10**-21.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from xxhash import xxh3_128_digest

from data_tools.documents import DocumentReader
from data_tools.quarantine import Rejects
from data_tools.units import Amount, Job, Reporter, Unit, are_whole, batches, do_unit, is_empty
from megatron_glm.files import Files, sha256_of

_RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<u8")])
_ORDINAL_BITS = 40  # of `document`; the number of the unit is above
HASHES = "hashes"  # the directory of this phase's units
_RUNS_FILE, _REPEATS_FILE = "runs", "repeats"


@dataclass(frozen=True)
class HashResult:
    """What the hash pass has made of a unit.

    Args:
        runs: records of each sorted run, one after another in the file `runs`.
        repeats: documents that are in a run already, in the file `repeats`.
    """

    input_checksum: str
    amount: Amount
    runs: list[int]
    repeats: int
    runs_sha256: str
    repeats_sha256: str


def hash_job(job: Job) -> Job:
    """The job of the hash pass, whose units lie in a directory of their own."""
    return replace(job, directory=job.directory / HASHES)


def hash_unit(unit: Unit, job: Job) -> HashResult:
    """Write the hashes of a unit's documents in sorted runs.

    Args:
        job: as `hash_job` gives it.

    Raises:
        DataError: the input is wrong.
        ResumableError: the unit is finished, and its input has changed since.
        StoppedError: the run has failed elsewhere.
    """

    def whole(result: HashResult) -> bool:
        directory = unit.directory(job)
        return are_whole(
            [
                (directory / _RUNS_FILE, sum(result.runs) * _RECORD.itemsize, result.runs_sha256),
                (directory / _REPEATS_FILE, result.repeats * 8, result.repeats_sha256),
            ]
        )

    return do_unit(unit, job, HashResult, lambda *place: _hash(unit, job, *place), whole)


def num_buckets(results: Sequence[HashResult], sort_records: int) -> int:
    """Into how many buckets the hashes are cut, so that one has about `sort_records`."""
    return max(1, -(-sum(sum(result.runs) for result in results) // sort_records))


def find_duplicates(bucket: int, buckets: int, job: Job, runs: Sequence[tuple[Unit, Sequence[int]]]) -> None:
    """Write which documents of a bucket are duplicates, in order.

    Args:
        job: of the tokenizing.
        runs: of every unit the number of records in each of its runs, in the order of the units.
    """
    parts = [part for unit, lengths in runs for part in _of_bucket(unit, lengths, bucket, buckets, hash_job(job))]
    _, duplicates = _first_of_equals(np.concatenate([np.empty(0, _RECORD), *parts]))
    duplicates.sort()
    path = _duplicates_directory(job) / f"{bucket:06d}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(duplicates.tobytes())


def duplicates_of(unit: Unit, job: Job) -> np.ndarray:
    """Which documents of a unit are duplicates of earlier ones, by their number in the unit, ascending: int64 [d]."""
    repeats = np.fromfile(unit.directory(hash_job(job)) / _REPEATS_FILE, "<u8")
    found = [repeats]
    first, end = unit.number << _ORDINAL_BITS, (unit.number + 1) << _ORDINAL_BITS
    for path in _duplicates_directory(job).iterdir():
        if path.stat().st_size:
            documents = np.memmap(path, "<u8", mode="r")
            start, stop = documents.searchsorted(np.array([first, end], np.uint64))
            found.append(np.array(documents[start:stop]))
    return np.sort((np.concatenate(found) - np.uint64(first)).astype(np.int64))


def _duplicates_directory(job: Job) -> Path:
    # They are found anew at each start: it takes seconds, and nothing needs to be verified.
    return job.directory / f"duplicates.{job.attempt}"


def _hash(unit: Unit, job: Job, directory: Path, files: Files) -> HashResult:
    report, text_bytes, number = Reporter(job, directory), 0, unit.number << _ORDINAL_BITS
    rejects = Rejects(unit.part.input, None, files) if job.malformed != "fail" else None
    reader = DocumentReader(unit.part, job.text_key, rejects)
    with _RunWriter(directory, job.sort_records, files) as writer:
        for texts, _ in batches(reader):
            raw = [b"" if is_empty(text) else text.encode("utf-8") for text in texts]
            text_bytes += sum(map(len, raw))
            numbers = [number + place for place, content in enumerate(raw) if content]
            writer.add([xxh3_128_digest(content) for content in raw if content], numbers)
            number += len(texts)
            report(Amount(reader.bytes_read, text_bytes))
    return HashResult(
        input_checksum=reader.checksum,
        amount=Amount(unit.part.bytes, text_bytes),
        runs=writer.runs,
        repeats=writer.repeats,
        runs_sha256=sha256_of(directory / _RUNS_FILE),
        repeats_sha256=sha256_of(directory / _REPEATS_FILE),
    )


class _RunWriter:
    """Sorts records in memory, and writes a run whenever there are `size`."""

    def __init__(self, directory: Path, size: int, files: Files):
        self._files = files
        self._runs_file = self._files.open(directory / _RUNS_FILE)
        self._repeats_file = self._files.open(directory / _REPEATS_FILE)
        self._size, self._filled = size, 0
        self._records = np.empty(0, _RECORD)
        self.runs: list[int] = []
        self.repeats = 0

    def add(self, digests: list[bytes], documents: list[int]) -> None:
        added = np.empty(len(documents), _RECORD)
        added["document"] = documents
        pairs = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
        added["high"], added["low"] = pairs[:, 0], pairs[:, 1]
        while len(added):
            taken, added = np.split(added, [self._size - self._filled])
            self._reserve(self._filled + len(taken))
            self._records[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            if self._filled == self._size:
                self._write_run()

    def _reserve(self, length: int) -> None:
        if length > len(self._records):
            room = np.empty(min(self._size, 2 * length), _RECORD)
            room[: self._filled] = self._records[: self._filled]
            self._records = room

    def _write_run(self) -> None:
        run, repeats = _first_of_equals(self._records[: self._filled])
        self._files.write(self._runs_file, run.tobytes())
        self._files.write(self._repeats_file, repeats.tobytes())
        self.runs.append(len(run))
        self.repeats += len(repeats)
        self._filled = 0

    def __enter__(self) -> _RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None and self._filled:
            self._write_run()
        for stream in (self._runs_file, self._repeats_file):
            if kind is None:
                self._files.sync(stream)
            stream.close()


def _first_of_equals(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Records in the order of documents: the first of each hash, sorted by hash, and the `document` of the others."""
    # A sort by several keys is stable, so the first of equal hashes is the first document.
    ordered = records[np.lexsort((records["low"], records["high"]))]
    again = np.zeros(len(ordered), bool)
    again[1:] = (ordered["high"][1:] == ordered["high"][:-1]) & (ordered["low"][1:] == ordered["low"][:-1])
    return ordered[~again], ordered["document"][again]


def _of_bucket(unit: Unit, lengths: Sequence[int], bucket: int, buckets: int, job: Job) -> Iterator[np.ndarray]:
    """The records of a bucket in each run of a unit."""
    if not lengths:
        return
    records = np.memmap(unit.directory(job) / _RUNS_FILE, _RECORD, mode="r")
    first = 0
    for length in lengths:
        high = records[first : first + length]["high"]  # not contiguous: NumPy's own search would copy it
        bounds = (bisect_left(high, (place << 64) // buckets, key=int) for place in (bucket, bucket + 1))
        start, stop = (first + bound for bound in bounds)
        yield np.array(records[start:stop])
        first += length

"""From the text of a unit to its shards, a megabyte at a time: what is dropped, what is held out, where eos goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import compress, repeat
from math import ceil
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_intdigest

from data_tools.dedupe import duplicates_of
from data_tools.documents import DocumentReader
from data_tools.engine_proof import Comparison, compare_engines
from data_tools.quarantine import Rejects
from data_tools.split_writer import SplitWriter
from data_tools.units import Amount, Job, Reporter, Unit, are_whole, batches, do_unit, is_empty
from data_tools.workers import ResumableError
from megatron_glm.data.manifest import QUARANTINE, SPLITS, Quarantine, Shard, SplitName
from megatron_glm.data.pair_format import bin_path, dtype_for, idx_path
from megatron_glm.data.provenance import origins_path
from megatron_glm.files import Files
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.loading import load_tokenizer

_HELD_OUT_KEY = 0x676C6D  # of its own: who has chosen documents by their plain hash before has not chosen these


@dataclass(frozen=True)
class UnitResult:
    """What was made of a unit; its shards lie in its directory as `<split>/<shard.name>.bin`.

    Args:
        input_checksum: of the part of the input that it read.
        duplicates_sha256: of the numbers of the documents that were dropped as duplicates, int64.
    """

    input_checksum: str
    amount: Amount
    documents_in: int
    dropped: dict[str, int]
    repaired: int
    shards: dict[SplitName, list[Shard]]
    duplicates_sha256: str
    quarantine: Quarantine | None


@dataclass(frozen=True)
class Tokens:
    """The ids of d documents.

    Args:
        rows: of each document, int32 [n] each.
        lengths: tokens of each sequence, int64 [s].
        sequences: of each document, int64 [d].
    """

    rows: list[np.ndarray]
    lengths: np.ndarray
    sequences: np.ndarray

    def choose(self, wanted: np.ndarray) -> Tokens:
        """Some of the documents, in order; `wanted`: bool [d]."""
        if wanted.all():
            return self
        return Tokens(
            list(compress(self.rows, wanted)), self.lengths[np.repeat(wanted, self.sequences)], self.sequences[wanted]
        )

    def closed(self, eos: int) -> tuple[np.ndarray, np.ndarray]:
        """All documents one after another, each closed by eos, which belongs to its last sequence.

        Every document has a sequence.

        Returns:
            ids, int32 [n + d]; tokens of each sequence, int64 [s].
        """
        closing = np.array([eos], np.int32)
        lengths = self.lengths.copy()
        lengths[np.cumsum(self.sequences) - 1] += 1
        return np.concatenate([ids for row in self.rows for ids in (row, closing)]), lengths


def are_held_out(texts: Iterable[bytes], share: float) -> np.ndarray:
    """Which documents are held out, 0 <= share < 1: bool [d]. By their own hash, so that adding data moves none."""
    hashes = np.fromiter(map(xxh3_64_intdigest, texts, repeat(_HELD_OUT_KEY)), np.uint64)
    return hashes < np.uint64(ceil(share * 2**64))


def run_unit(unit: Unit, job: Job) -> UnitResult:
    """Tokenize a unit and write its shards; a unit that is finished already is read through and kept.

    Raises:
        DataError: the input is wrong.
        ResumableError: the tokenizer is no longer the one of the run, or the unit is finished and its input has
            changed since.
        StoppedError: the run has failed elsewhere.
    """
    duplicates = duplicates_of(unit, job) if job.dedupe == "exact" else np.empty(0, np.int64)

    def whole(result: UnitResult) -> bool:
        same = result.duplicates_sha256 == _sha256(duplicates)
        return same and are_whole(_files(unit.directory(job), result))

    return do_unit(unit, job, UnitResult, lambda *place: _tokenize(unit, job, *place, duplicates), whole)


def _files(directory: Path, result: UnitResult) -> Iterator[tuple[Path, int, str]]:
    for split, shards in result.shards.items():
        for shard in shards:
            prefix = directory / split / shard.name
            yield bin_path(prefix), shard.bin_bytes, shard.bin_sha256
            yield idx_path(prefix), shard.idx_bytes, shard.idx_sha256
            yield origins_path(prefix), shard.origins_bytes, shard.origins_sha256
    if result.quarantine:
        yield directory / QUARANTINE, result.quarantine.bytes, result.quarantine.sha256


def _tokenize(unit: Unit, job: Job, directory: Path, files: Files, duplicates: np.ndarray) -> UnitResult:
    tokenizer = _tokenizer(job.tokenizer, job.tokenizer_hash, job.fast)
    rejects = Rejects(unit.part.input, directory if job.malformed == "quarantine" else None, files)
    reader = DocumentReader(unit.part, job.text_key, None if job.malformed == "fail" else rejects)
    report, writer = Reporter(job, directory), _UnitWriter(unit, job, directory, tokenizer, files)
    number = 0
    for texts, places in batches(reader):
        first, end = duplicates.searchsorted([number, number + len(texts)])
        writer.add(texts, places, duplicates[first:end] - number)
        number += len(texts)
        report(Amount(reader.bytes_read, writer.text_bytes, writer.num_tokens))
    shards = writer.close()
    return UnitResult(
        input_checksum=reader.checksum,
        amount=Amount(unit.part.bytes, writer.text_bytes, writer.num_tokens),
        documents_in=number + rejects.counts.total(),
        dropped=dict(writer.dropped + rejects.counts),
        repaired=reader.repaired,
        shards=shards,
        duplicates_sha256=_sha256(duplicates),
        quarantine=rejects.close(),
    )


class _UnitWriter:
    """Tokenizes documents and writes those that stay; counts the others by reason in `dropped`."""

    def __init__(self, unit: Unit, job: Job, directory: Path, tokenizer: Tokenizer, files: Files):
        self._job, self._tokenizer = job, tokenizer
        vocab_size = tokenizer.vocab_size
        self._splits: dict[SplitName, SplitWriter] = {}
        for split in SPLITS:
            (directory / split).mkdir()
            self._splits[split] = SplitWriter(
                directory / split, dtype_for(vocab_size), vocab_size, job.shard_tokens, unit.input, files
            )
        self.dropped: Counter[str] = Counter()
        self.text_bytes = 0

    @property
    def num_tokens(self) -> int:
        return sum(writer.num_tokens for writer in self._splits.values())

    def add(self, texts: list[str], places: np.ndarray, duplicates: np.ndarray) -> None:
        """Take a batch; `duplicates` are the numbers of those of its documents that occurred before."""
        empty = np.fromiter(map(is_empty, texts), bool, len(texts))
        keep = ~empty
        keep[duplicates] = False
        self.dropped += Counter({"empty": int(empty.sum()), "duplicate": len(duplicates)})
        kept = list(compress(texts, keep))
        if not kept:
            return
        tokens = _encode(self._tokenizer, kept, sentences=self._job.sentences)
        lengths = np.fromiter(map(len, tokens.rows), np.int64, len(kept))
        long = lengths >= max(1, self._job.min_tokens)
        without = int((lengths == 0).sum())  # only zero-width characters, say
        self.dropped += Counter({"no tokens": without, "too short": int((~long).sum()) - without})
        self._write(compress(kept, long), places[keep][long], tokens.choose(long))

    def close(self) -> dict[SplitName, list[Shard]]:
        """The shards of each split."""
        return {split: writer.close() for split, writer in self._splits.items()}

    def _counted(self, texts: Iterable[str]) -> Iterator[bytes]:
        """The UTF-8 of texts, whose bytes are counted; one at a time, so that all take the same, warm memory."""
        for text in texts:
            utf8 = text.encode()
            self.text_bytes += len(utf8)
            yield utf8

    def _write(self, texts: Iterable[str], places: np.ndarray, tokens: Tokens) -> None:
        held_out = are_held_out(self._counted(texts), self._job.held_out)
        for split, wanted in (("train", ~held_out), ("held_out", held_out)):
            if wanted.any():
                part = tokens.choose(wanted)
                ids, lengths = part.closed(self._tokenizer.special.eos)
                self._splits[split].add_documents(ids, lengths, part.sequences, places[wanted])


def _sha256(numbers: np.ndarray) -> str:
    return sha256(numbers.astype("<i8").tobytes()).hexdigest()


def _encode(tokenizer: Tokenizer, texts: list[str], *, sentences: bool) -> Tokens:
    if not sentences:
        rows = tokenizer.encode_batch(texts)
        return Tokens(rows, np.fromiter(map(len, rows), np.int64, len(rows)), np.ones(len(rows), np.int64))
    from data_tools.sentences import encode_sentences

    encoded = encode_sentences(tokenizer, texts)
    ends = np.cumsum(encoded.lengths)
    return Tokens(np.split(encoded.ids, ends[:-1]), encoded.sentence_lengths, encoded.sentences)


def prove_engine(directory: str, content_hash: str, texts: Sequence[str]) -> Comparison:
    """Compare the fast tokenizer with its reference, in a process that then has both.

    Raises:
        ResumableError: the tokenizer is no longer the one of the run.
    """
    return compare_engines(_tokenizer(directory, content_hash, False), _accelerated(directory, content_hash), texts)


@cache
def _accelerated(directory: str, content_hash: str) -> Tokenizer | None:
    from megatron_glm.tokenizer.fast import accelerated

    return accelerated(_tokenizer(directory, content_hash, False))


@cache
def _tokenizer(directory: str, content_hash: str, fast: bool) -> Tokenizer:
    """Loaded once in a process, and used for all its units."""
    if not fast:
        tokenizer = load_tokenizer(directory)
        if tokenizer.content_hash != content_hash:
            raise ResumableError(f"'{directory}': the tokenizer was changed during the run; start again")
        return tokenizer
    if (faster := _accelerated(directory, content_hash)) is None:
        raise ResumableError(
            "the library of the fast tokenizer is not installed for this process; install it there or give --no-fast"
        )
    return faster

"""From the text of a unit to its shards, a megabyte at a time: what is dropped, what is held out, where eos goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b, sha256
from itertools import compress
from math import ceil
from pathlib import Path

import numpy as np

from data_tools.dedupe import duplicates_of
from data_tools.documents import DocumentReader
from data_tools.inputs import checksum_of_part
from data_tools.quarantine import Rejects
from data_tools.split_writer import SplitWriter
from data_tools.units import Amount, Job, Reporter, Unit, are_whole, batches, do_unit, is_empty
from data_tools.workers import ResumableError
from megatron_glm.data.indexed import bin_path, dtype_for, idx_path
from megatron_glm.data.manifest import QUARANTINE, SPLITS, Quarantine, Shard, SplitName
from megatron_glm.data.provenance import origins_path
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.loading import load_tokenizer


@dataclass(frozen=True)
class UnitResult:
    """What was made of a unit; its shards lie in its directory as `<split>/<shard.name>.bin`.

    Args:
        input_checksum: of the part of the input that it read.
        duplicates_sha256: of the numbers of the documents that were dropped as duplicates, int64.
    """

    input_checksum: int
    amount: Amount
    documents_in: int
    dropped: dict[str, int]
    repaired: int
    shards: dict[SplitName, list[Shard]]
    duplicates_sha256: str
    quarantine: Quarantine | None


@dataclass(frozen=True)
class Tokens:
    """The ids of d documents, one after another.

    Args:
        ids: int32 [n].
        lengths: tokens of each sequence, int64 [s].
        sequences: of each document, int64 [d].
    """

    ids: np.ndarray
    lengths: np.ndarray
    sequences: np.ndarray

    def document_lengths(self) -> np.ndarray:
        """Tokens of each document: int64 [d]."""
        return _sums(self.lengths, self.sequences)

    def with_eos(self, eos: int) -> Tokens:
        """Each document closed by eos, which belongs to its last sequence; every document has one."""
        ends = np.cumsum(self.document_lengths())
        closing = ends + np.arange(len(ends))
        ids = np.empty(len(self.ids) + len(ends), self.ids.dtype)
        is_text = np.ones(len(ids), bool)
        is_text[closing] = False
        ids[is_text], ids[closing] = self.ids, eos
        lengths = self.lengths.copy()
        lengths[np.cumsum(self.sequences) - 1] += 1
        return replace(self, ids=ids, lengths=lengths)

    def choose(self, wanted: np.ndarray) -> Tokens:
        """Some of the documents, in order; `wanted`: bool [d]."""
        if wanted.all():
            return self
        bounds = np.concatenate(([0], np.cumsum(self.document_lengths())))
        # Most of a batch stays together, so its runs are copied, and not token by token.
        edges = bounds[np.flatnonzero(np.diff(wanted.astype(np.int8), prepend=0, append=0))]
        runs = [self.ids[start:stop] for start, stop in edges.reshape(-1, 2).tolist()]
        return Tokens(
            np.concatenate([self.ids[:0], *runs]),
            self.lengths[np.repeat(wanted, self.sequences)],
            self.sequences[wanted],
        )


def are_held_out(texts: Iterable[bytes], share: float) -> np.ndarray:
    """Which documents are held out, 0 <= share < 1: bool [d]. By their own hash, so that adding data moves none."""
    hashes = b"".join(blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(hashes, ">u8") < np.uint64(ceil(share * 2**64))


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

    return do_unit(unit, job, UnitResult, lambda directory: _tokenize(unit, job, directory, duplicates), whole)


def _files(directory: Path, result: UnitResult) -> Iterator[tuple[Path, int, str]]:
    for split, shards in result.shards.items():
        for shard in shards:
            prefix = directory / split / shard.name
            yield bin_path(prefix), shard.bin_bytes, shard.bin_sha256
            yield idx_path(prefix), shard.idx_bytes, shard.idx_sha256
            yield origins_path(prefix), shard.origins_bytes, shard.origins_sha256
    if result.quarantine:
        yield directory / QUARANTINE, result.quarantine.bytes, result.quarantine.sha256


def _tokenize(unit: Unit, job: Job, directory: Path, duplicates: np.ndarray) -> UnitResult:
    checksum = checksum_of_part(unit.part)
    tokenizer = _tokenizer(job.tokenizer, job.tokenizer_hash, job.fast)
    rejects = Rejects(unit.part.input, directory if job.malformed == "quarantine" else None)
    reader = DocumentReader(unit.part, job.text_key, None if job.malformed == "fail" else rejects)
    report, writer = Reporter(job, directory), _UnitWriter(unit, job, directory, tokenizer)
    number = 0
    for texts, places in batches(reader):
        first, end = duplicates.searchsorted([number, number + len(texts)])
        writer.add(texts, places, duplicates[first:end] - number)
        number += len(texts)
        report(Amount(reader.bytes_read, writer.text_bytes, writer.num_tokens))
    shards = writer.close()
    return UnitResult(
        input_checksum=checksum,
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

    def __init__(self, unit: Unit, job: Job, directory: Path, tokenizer: Tokenizer):
        self._job, self._tokenizer = job, tokenizer
        vocab_size = tokenizer.vocab_size
        self._splits: dict[SplitName, SplitWriter] = {}
        for split in SPLITS:
            (directory / split).mkdir()
            self._splits[split] = SplitWriter(
                directory / split, dtype_for(vocab_size), vocab_size, job.shard_tokens, unit.input
            )
        self.dropped: Counter[str] = Counter()
        self.text_bytes = 0

    @property
    def num_tokens(self) -> int:
        return sum(writer.num_tokens for writer in self._splits.values())

    def add(self, texts: list[str], places: list[int], duplicates: np.ndarray) -> None:
        """Take a batch; `duplicates` are the numbers of those of its documents that occurred before."""
        empty = np.fromiter(map(is_empty, texts), bool, len(texts))
        keep = ~empty
        keep[duplicates] = False
        self.dropped += Counter({"empty": int(empty.sum()), "duplicate": len(duplicates)})
        kept = list(compress(texts, keep))
        if not kept:
            return
        tokens = _encode(self._tokenizer, kept, sentences=self._job.sentences)
        lengths = tokens.document_lengths()
        long = lengths >= max(1, self._job.min_tokens)
        without = int((lengths == 0).sum())  # only zero-width characters, say
        self.dropped += Counter({"no tokens": without, "too short": int((~long).sum()) - without})
        self._write(
            list(compress(kept, long)),
            np.array(places, np.int64)[keep][long],
            tokens.choose(long).with_eos(self._tokenizer.special.eos),
        )

    def close(self) -> dict[SplitName, list[Shard]]:
        """The shards of each split."""
        return {split: writer.close() for split, writer in self._splits.items()}

    def _write(self, texts: list[str], places: np.ndarray, tokens: Tokens) -> None:
        raw = [text.encode("utf-8") for text in texts]
        self.text_bytes += sum(map(len, raw))
        held_out = are_held_out(raw, self._job.held_out)
        for split, wanted in (("train", ~held_out), ("held_out", held_out)):
            if wanted.any():
                part = tokens.choose(wanted)
                self._splits[split].add_documents(part.ids, part.lengths, part.sequences, places[wanted])


def _sha256(numbers: np.ndarray) -> str:
    return sha256(numbers.astype("<i8").tobytes()).hexdigest()


def _encode(tokenizer: Tokenizer, texts: list[str], *, sentences: bool) -> Tokens:
    if not sentences:
        ids, lengths = tokenizer.encode_flat(texts)
        return Tokens(ids, lengths, np.ones(len(lengths), np.int64))
    from data_tools.sentences import encode_sentences

    encoded = encode_sentences(tokenizer, texts)
    return Tokens(encoded.ids, encoded.sentence_lengths, encoded.sentences)


def _sums(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sums over consecutive groups of `counts` values, of which some may be empty."""
    return np.diff(np.concatenate(([0], np.cumsum(values)))[np.concatenate(([0], np.cumsum(counts)))])


@cache
def _tokenizer(directory: str, content_hash: str, fast: bool) -> Tokenizer:
    """Loaded once in a process, and used for all its units."""
    tokenizer = load_tokenizer(directory)
    if tokenizer.content_hash != content_hash:
        raise ResumableError(f"'{directory}': the tokenizer was changed during the run; start again")
    if not fast:
        return tokenizer
    from megatron_glm.tokenizer.fast import accelerated

    if (faster := accelerated(tokenizer)) is None:
        raise ResumableError(
            "the library of the fast tokenizer is not installed for this process; install it there or give --no-fast"
        )
    return faster

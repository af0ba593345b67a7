"""What a run will come to, from a sample of its inputs: documents, tokens, shards, disk and time."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from math import ceil
from pathlib import Path

import numpy as np

from data_tools.documents import DocumentReader, Malformed
from data_tools.inputs import Documents, InputFile, Range, cut, cut_at, whole
from data_tools.units import is_empty
from megatron_glm.byte_sizes import size_text
from megatron_glm.data.manifest import DedupePolicy, Options
from megatron_glm.data.pair_format import dtype_for
from megatron_glm.errors import DataError
from megatron_glm.files import temporary_name
from megatron_glm.tokenizer.base import Tokenizer

_SPOTS, _SPOT_BYTES = 32, 1 << 18
_DOCUMENT_BYTES, _SEQUENCE_BYTES = 16, 12  # of the .idx and the origins
_HASH_BYTES = 32  # that the search for duplicates keeps meanwhile, for one document at most
_SHARD_BYTES = 1024  # of headers and of the manifest
# Documents of one letter grow most, and have at least the braces, quotes and key of JSON; few packed files are denser.
_LARGEST_GROWTH_OF_JSON, _LARGEST_GROWTH_OF_TEXT, _LARGEST_GROWTH_OF_PACKED = 10, 32, 100


@dataclass(frozen=True)
class Sample:
    """What was read: bytes of the input files, bytes of UTF-8 text, tokens with eos; seconds on one core."""

    input_bytes: int = 0
    text_bytes: int = 0
    documents: int = 0
    sequences: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """What a whole run will come to; bytes, and seconds on one core."""

    sample: Sample
    input_bytes: int
    documents: int
    tokens: int
    shards: int
    disk_bytes: int
    core_seconds: float


def estimate(inputs: Sequence[InputFile], tokenizer: Tokenizer, options: Options, *, units: int) -> Estimate:
    """Scale a sample of about 8 MB, spread evenly over the inputs, to the whole.

    How many duplicates there are, a sample cannot tell; they are counted as if they stayed.

    Args:
        units: units of the run; each has shards of its own.

    Raises:
        DataError: the sample holds a document that cannot be read, unless such are left out, or none that stays.
    """
    sample = _read_sample(inputs, tokenizer, options)
    total = sum(file.bytes for file in inputs)
    growth = total / sample.input_bytes
    documents, tokens = round(sample.documents * growth), round(sample.tokens * growth)
    shards = 0
    for part in (1 - options.held_out, options.held_out):
        filled = 1 - (1 - part) ** (documents / units)  # share of the units with a document of this split
        shards += ceil(units * filled * ceil(tokens * part / units / options.shard_tokens))
    disk = tokens * dtype_for(tokenizer.vocab_size).itemsize + shards * _SHARD_BYTES
    disk += documents * _DOCUMENT_BYTES + round(sample.sequences * growth) * _SEQUENCE_BYTES
    if options.dedupe == "exact":
        disk += documents * _HASH_BYTES
    return Estimate(sample, total, documents, tokens, shards, disk, sample.seconds * growth)


def may_fill_disk(inputs: Sequence[InputFile], output: Path) -> bool:
    """Whether the disk is so full that an estimate is worth its seconds."""
    return available_bytes(output) < sum(_largest_growth(file) * file.bytes for file in inputs)


def _largest_growth(file: InputFile) -> int:
    if file.decompress is not None or file.documents is Documents.ROWS:
        return _LARGEST_GROWTH_OF_PACKED
    return _LARGEST_GROWTH_OF_JSON if file.documents is Documents.JSON else _LARGEST_GROWTH_OF_TEXT


def check_disk(expected: Estimate, output: Path) -> None:
    """Foresee a full disk.

    Raises:
        DataError: the output will not fit.
    """
    if expected.disk_bytes > (free := available_bytes(output)):
        raise DataError(
            f"--output: '{output}' needs about {size_text(expected.disk_bytes)}, its disk has {size_text(free)}; "
            "free space or name another directory"
        )


def available_bytes(output: Path) -> int:
    """Bytes that the output may take: what is free, and what an interrupted run has written of it."""
    written = 0
    for parent, _, names in os.walk(temporary_name(output)):
        for name in names:
            with suppress(FileNotFoundError):  # another process is writing there, and will be noticed by its lock
                written += Path(parent, name).stat().st_size
    place = next(path for path in output.absolute().parents if path.exists())
    return shutil.disk_usage(place).free + written


def report(expected: Estimate, output: Path, dtype: str, workers: int, dedupe: DedupePolicy) -> Iterator[str]:
    """The lines of a dry run."""
    sample = expected.sample
    share = sample.input_bytes / expected.input_bytes
    rate = sample.input_bytes / max(sample.seconds, 1e-9) / 1e6
    extent = "all of it" if share == 1 else f"{share:.2%} of it, spread evenly"
    yield (
        f"sample     {sample.documents:,} documents, {sample.input_bytes / 1e6:,.1f} of "
        f"{expected.input_bytes / 1e6:,.1f} MB of input, {extent}"
    )
    duplicates = ", duplicates still counted" if dedupe == "exact" else ""
    yield f"documents  about {expected.documents:,}{duplicates}"
    yield f"tokens     about {expected.tokens:,} as {dtype} ({sample.text_bytes / sample.tokens:.2f} bytes/token)"
    yield f"shards     about {expected.shards:,}"
    yield f"disk       about {size_text(expected.disk_bytes)} of {size_text(available_bytes(output))} there"
    yield (
        f"time       about {expected.core_seconds / workers:,.0f} s for {workers} processes "
        f"at {rate:.1f} MB/s of input each"
    )


def _read_sample(inputs: Sequence[InputFile], tokenizer: Tokenizer, options: Options) -> Sample:
    input_bytes = text_bytes = documents = sequences = tokens = 0
    start = time.monotonic()
    for part, limit in sample_parts(inputs):
        reader = DocumentReader(part, options.text_key, None if options.malformed == "fail" else _leave_out)
        for block, _ in reader.blocks():
            texts = [text for text in block if not is_empty(text)]
            lengths, parts = _count(tokenizer, texts, sentences=options.sentences)
            kept = lengths >= max(1, options.min_tokens)
            documents += int(kept.sum())
            sequences += int(parts[kept].sum())
            tokens += int((lengths[kept] + 1).sum())
            text_bytes += sum(len(text.encode("utf-8")) for text in compress(texts, kept))
            # What is meant as a whole is read to its end: its bytes are read ahead of its last documents.
            if limit < part.bytes and reader.bytes_read >= limit:
                break
        input_bytes += reader.bytes_read
    if not documents:
        raise DataError(f"--input: a sample of {input_bytes} bytes holds no document that stays; name files with text")
    return Sample(input_bytes, text_bytes, documents, sequences, tokens, time.monotonic() - start)


def _leave_out(malformed: Malformed) -> None:
    pass


def _count(tokenizer: Tokenizer, texts: Sequence[str], *, sentences: bool) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and sequences of each text: int64 [k] each."""
    if not sentences:
        _, lengths = tokenizer.encode_flat(texts)
        return lengths, np.ones(len(lengths), np.int64)
    from data_tools.sentences import encode_sentences

    encoded = encode_sentences(tokenizer, texts)
    return encoded.lengths, encoded.sentences


def sample_parts(inputs: Sequence[InputFile]) -> Iterator[tuple[Range, int]]:
    """Parts of the inputs, and after how many bytes of each to stop; all of a corpus that is small."""
    total = sum(file.bytes for file in inputs)
    if total <= _SPOTS * _SPOT_BYTES:
        yield from ((whole(file), file.bytes) for file in inputs)
        return
    begin = 0
    places = [total * spot // _SPOTS for spot in range(_SPOTS)]
    for file in inputs:
        inside = [place - begin for place in places if begin <= place < begin + file.bytes]
        if inside:
            yield from _parts_at(file, inside)
        begin += file.bytes


def _parts_at(file: InputFile, places: Sequence[int]) -> Iterator[tuple[Range, int]]:
    """Parts of a file at these bytes of it, and after how many bytes of each to stop."""
    if file.unit == "row":
        for part in cut(file, 1):  # of a row group only the beginning
            if spots := sum(part.extent[0] <= place < part.extent[1] for place in places):
                yield part, _SPOT_BYTES * spots
    elif file.decompress is not None:
        yield whole(file), _SPOT_BYTES * len(places)  # only its beginning can be reached
    else:
        for place in places:
            if (part := cut_at(file, place, _SPOT_BYTES)) is not None:
                yield part, part.bytes

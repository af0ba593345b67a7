"""A corpus of any size from a small one: documents of its paragraphs, drawn anew.

Real text in gigabytes cannot be shipped with the project. Paragraphs of real prose have the words and the spelling
of real text; what they lack is variety: a tokenizer that remembers words is flattered, and so are all that are
compared with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

# Text about tokenizers spells special tokens. To us that is text, to libraries left to their defaults it is the tokens:
# the arms would not do the same work.
_SPELLS_SPECIAL = re.compile(r"<[|/]?\w+[|]?>|\[\w+\]")
_SIGMA = 1.0  # of the logarithm of a document's length: the long tail of web text
_LONGEST = 200_000
_DRAWN = 1 << 16  # paragraphs drawn at once


@dataclass(frozen=True)
class Corpus:
    """What was written; bytes of UTF-8 text, without what JSON adds.

    Args:
        lengths: how many documents have 2**k to 2**(k + 1) bytes of text, by 2**k.
        pieces: different paragraphs or documents that it is made of, and the bytes of their text.
    """

    files: tuple[str, ...]
    file_bytes: int
    text_bytes: int
    documents: int
    mean_bytes: float
    lengths: dict[int, int]
    pieces: int
    piece_bytes: int
    seed: int


def write_corpus(
    source: Path, directory: Path, *, text_bytes: int, files: int, median_bytes: int = 2500, seed: int = 1234
) -> Corpus:
    """Write JSON lines files of equal size.

    Args:
        source: JSON lines whose `text` has a paragraph a line, as data_tools.sample_corpus writes.
        median_bytes: of a document's text.
    """
    directory.mkdir(parents=True)
    lines = (line for row in source.open("rb") for line in json.loads(row)["text"].split("\n") if line.strip())
    paragraphs = [line for line in lines if not _SPELLS_SPECIAL.search(line)]
    sizes = np.array([len(paragraph.encode("utf-8")) for paragraph in paragraphs])
    escaped = [json.dumps(paragraph, ensure_ascii=False)[1:-1].encode("utf-8") for paragraph in paragraphs]
    random = np.random.default_rng(seed)
    paths = [directory / f"{number:03d}.jsonl" for number in range(files)]
    lengths: list[int] = []
    for number, path in enumerate(paths):
        with path.open("wb") as stream:
            goal = text_bytes * (number + 1) // files
            _write_documents(stream, escaped, sizes, random, lengths, goal, median_bytes)
    return facts(paths, lengths, pieces=len(paragraphs), piece_bytes=int(sizes.sum()), seed=seed)


def facts(paths: Sequence[Path], lengths: Sequence[int], *, pieces: int, piece_bytes: int, seed: int) -> Corpus:
    """What was written to `paths`: documents of these lengths in bytes."""
    powers, counts = np.unique(np.log2(lengths).astype(int), return_counts=True)
    return Corpus(
        files=tuple(str(path) for path in paths),
        file_bytes=sum(path.stat().st_size for path in paths),
        text_bytes=sum(lengths),
        documents=len(lengths),
        mean_bytes=round(sum(lengths) / len(lengths), 1),
        lengths={2**power: count for power, count in zip(powers.tolist(), counts.tolist(), strict=True)},
        pieces=pieces,
        piece_bytes=piece_bytes,
        seed=seed,
    )


def _write_documents(
    stream: BinaryIO,
    escaped: list[bytes],
    sizes: np.ndarray,
    random: np.random.Generator,
    lengths: list[int],
    goal: int,
    median_bytes: int,
) -> None:
    """Append documents until `lengths` sums to `goal`; a document ends with the paragraph that fills it."""
    written = sum(lengths)
    while written < goal:
        drawn = random.integers(0, len(escaped), _DRAWN)
        ends = np.cumsum(sizes[drawn] + 1)  # with the newlines between paragraphs
        start = 0
        while start < _DRAWN and written < goal:
            wanted = min(median_bytes * np.exp(_SIGMA * random.standard_normal()), _LONGEST)
            before = ends[start - 1] if start else 0
            stop = min(int(np.searchsorted(ends, before + wanted)) + 1, _DRAWN)
            stream.write(b'{"text": "' + b"\\n".join([escaped[i] for i in drawn[start:stop]]) + b'"}\n')
            lengths.append(int(ends[stop - 1] - before) - 1)
            written += lengths[-1]
            start = stop

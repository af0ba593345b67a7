"""A corpus of any size from the text files of a machine: whole documents, repeated, each time in another order.

Recombined paragraphs (benchmarks/recombined_text.py) have the few words of ten megabytes, which flatters a tokenizer
that remembers words. Half a gigabyte of real files (documentation, source code) has millions of words, most of them
rare, as web text has; what it lacks is the variety of more than half a gigabyte.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from benchmarks.recombined_text import Corpus, facts
from megatron_glm.tokenizer.new_letters import has_no_new_letters

SUFFIXES = (".py", ".pyi", ".md", ".rst", ".txt", ".html")
_LEAST, _LARGEST = 200, 1_000_000  # bytes; smaller files are stubs, larger ones tables


def collect(directories: Iterable[Path], output: Path, *, without: Sequence[str]) -> None:
    """Write the text files below some directories as JSON lines, each content once, in the order of their paths.

    Args:
        without: strings; a file with one of them is left out. To us the name of a special token is text, to libraries
            left to their defaults it is the token: the arms would not do the same work. So is one with letters on
            which the two libraries do not agree, and one that begins with a space: we put one before the first word
            of every text, so that `decode` knows what to take off, the libraries only where there is none.
    """
    seen: set[bytes] = set()
    with output.open("wb") as stream:
        for path in _files(directories):
            content = path.read_bytes()
            digest = blake2b(content, digest_size=16).digest()
            if digest in seen or not _LEAST <= len(content) <= _LARGEST:
                continue
            seen.add(digest)
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError:
                continue
            if text.startswith(" ") or not has_no_new_letters(content):
                continue
            if not any(string in text for string in without):
                stream.write(json.dumps({"text": text}, ensure_ascii=False).encode("utf-8") + b"\n")


def write_repeated(source: Path, directory: Path, *, text_bytes: int, files: int, seed: int = 1234) -> Corpus:
    """Write JSON lines files of equal size.

    Args:
        source: JSON lines as `collect` writes.
    """
    directory.mkdir(parents=True)
    lines = source.read_bytes().splitlines(keepends=True)
    sizes = np.array([len(json.loads(line)["text"].encode("utf-8")) for line in lines])
    random = np.random.default_rng(seed)
    paths = [directory / f"{number:03d}.jsonl" for number in range(files)]
    lengths: list[int] = []
    order = _endless(random, len(lines))
    written = 0
    for number, path in enumerate(paths):
        with path.open("wb") as stream:
            while written < text_bytes * (number + 1) // files:
                document = next(order)
                stream.write(lines[document])
                lengths.append(int(sizes[document]))
                written += lengths[-1]
    return facts(paths, lengths, pieces=len(lines), piece_bytes=int(sizes.sum()), seed=seed)


def _files(directories: Iterable[Path]) -> Iterator[Path]:
    for directory in directories:
        for parent, below, names in os.walk(directory):
            below.sort()
            paths = (Path(parent, name) for name in sorted(names) if name.endswith(SUFFIXES))
            yield from (path for path in paths if path.is_file() and not path.is_symlink())


def _endless(random: np.random.Generator, number: int) -> Iterator[int]:
    while True:
        yield from random.permutation(number).tolist()

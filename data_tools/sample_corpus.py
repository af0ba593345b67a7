"""Collect a corpus of real English prose from what is installed here; nothing is downloaded.

    python -m data_tools.sample_corpus --output corpus.jsonl

One document a module: the prose of its docstrings, a paragraph a line. A paragraph that was seen
before is left out, also if only names and numbers differ: libraries repeat templates by the hundred.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from data_tools.docstrings import SourceFile, docstrings, import_roots, source_files
from data_tools.prose import clean, paragraphs, sentence_share
from megatron_glm.command import run_command
from megatron_glm.errors import DataError
from megatron_glm.extras import install_command
from megatron_glm.files import atomic_file

_LEAST_DOCUMENT = 200  # characters; what is shorter is no document
_CHUNK = 32  # files handed to a process at once
_NAME = re.compile(r"\S*(?:[_\d]|\w\.\w|[a-z][A-Z])\S*")  # a word that is an identifier or holds a number


@dataclass(frozen=True)
class Document:
    """The prose of one module."""

    source: str
    text: str

    def to_json(self) -> bytes:
        return json.dumps({"text": self.text, "source": self.source}, ensure_ascii=False).encode() + b"\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m data_tools.sample_corpus",
        description="Collect English prose from the docstrings of the installed packages, as JSON lines with 'text'.",
    )
    parser.add_argument("--output", required=True, type=_jsonl, metavar="FILE.jsonl", help="is replaced if it exists")
    parser.add_argument(
        "--min-megabytes", type=_size, default=8.0, help="fail if less is found (default: 8; 1 MB = 1,000,000 bytes)"
    )
    parser.add_argument(
        "--packages", nargs="+", metavar="NAME", help="read these top-level modules only, e.g. numpy argparse"
    )
    return run_command(parser, run, argv)


def _jsonl(text: str) -> Path:
    """Other commands tell by the suffix how to read a file: JSON lines under another would be taken for plain text."""
    if not text.endswith(".jsonl"):
        raise argparse.ArgumentTypeError(f"{text} is to hold JSON lines; give it a name that ends with .jsonl")
    return Path(text)


def _size(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no size of 0 or more")
    return value


def run(args: argparse.Namespace) -> None:
    files = [file for root in import_roots() for file in source_files(root)]
    if args.packages:
        files = of_packages(files, args.packages)
    documents = list(collect(_with_progress(read_prose(files), len(files))))
    share = write_corpus(documents, args.output, args.min_megabytes)
    size = args.output.stat().st_size / 1e6
    print(f"{args.output}: {len(documents)} documents, {size:.2f} MB, {share:.1%} of the text in full sentences")


def of_packages(files: Sequence[SourceFile], packages: Sequence[str]) -> list[SourceFile]:
    """The files of the named top-level modules. Raises DataError for one that is not installed."""
    by_package: dict[str, list[SourceFile]] = {name: [] for name in packages}
    for file in files:
        top = file.name.split("/")[0].removesuffix(".py")
        if top in by_package:
            by_package[top].append(file)
    for name, found in by_package.items():
        if not found:
            raise DataError(f"--packages: '{name}' has no Python files here; name installed top-level modules")
    return [file for found in by_package.values() for file in found]


def read_prose(files: Sequence[SourceFile]) -> Iterator[tuple[str, list[str]]]:
    """Name and prose paragraphs of each file, in the order given, read by as many processes as there are cores."""
    processes = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from zip((file.name for file in files), pool.map(prose, files, chunksize=_CHUNK), strict=True)


def prose(file: SourceFile) -> list[str]:
    """The paragraphs of prose in a file's docstrings."""
    return [text for docstring in docstrings(file) for part in paragraphs(docstring) if (text := clean(part))]


def collect(modules: Iterable[tuple[str, list[str]]]) -> Iterator[Document]:
    """Documents of the modules, each without the paragraphs that an earlier one holds."""
    seen: set[bytes] = set()
    for name, parts in modules:
        new = []
        for part in parts:
            template = _NAME.sub("#", part).casefold()
            digest = hashlib.blake2b(template.encode(), digest_size=12).digest()
            if digest not in seen:
                seen.add(digest)
                new.append(part)
        text = "\n".join(new)
        if len(text) >= _LEAST_DOCUMENT:
            yield Document(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."), text)


def write_corpus(documents: Sequence[Document], output: Path, min_megabytes: float) -> float:
    """Write documents as JSON lines; returns the share of the text's bytes that lies in full sentences.

    Raises:
        DataError: less than `min_megabytes`, or `output` cannot be written; nothing is left behind.
    """
    lines = [document.to_json() for document in documents]
    megabytes = sum(map(len, lines)) / 1e6
    if megabytes < min_megabytes:
        raise DataError(
            f"--min-megabytes: found {megabytes:.2f} MB of prose in this environment's packages, {min_megabytes:g} are"
            f" asked for; install the test extras ({install_command('test')}) or ask for less"
        )
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(output) as stream:
            stream.writelines(lines)
    except OSError as error:
        raise DataError(f"--output: '{output}': {error.strerror}") from error
    return sentence_share("\n".join(document.text for document in documents))


def _with_progress(modules: Iterator[tuple[str, list[str]]], total: int) -> Iterator[tuple[str, list[str]]]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(modules, "reading docstrings", total, console=console, disable=not console.is_terminal)


if __name__ == "__main__":
    sys.exit(main())

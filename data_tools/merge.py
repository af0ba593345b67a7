"""Join the shards of a split, or existing pairs, to one .bin/.idx pair of Megatron.

python -m data_tools.merge data/wiki --output merged/wiki
python -m data_tools.merge --prefix a/first 'b/part_*' --output merged/all
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from megatron_glm.byte_sizes import size_text
from megatron_glm.command import run_command
from megatron_glm.counting import count_text
from megatron_glm.data.indexed import IndexedFile
from megatron_glm.data.manifest import SPLITS
from megatron_glm.data.pair_format import bin_path, idx_path, index_header
from megatron_glm.data.prefixes import expand
from megatron_glm.data.shards import ShardSet
from megatron_glm.errors import ConfigError, DataError
from megatron_glm.files import LOCK_SUFFIX, Files, atomic_file, temporary_name
from megatron_glm.locking import exclusive

_BLOCK_TOKENS = 1 << 21  # copied at a time
_LINE_SECONDS = 10.0


@dataclass(frozen=True)
class Merged:
    """What one pair will hold, and whether ids are made wider for it."""

    dtype: np.dtype
    sequences: int
    documents: int
    tokens: int
    converted: int

    @property
    def bin_bytes(self) -> int:
        return self.tokens * self.dtype.itemsize

    @property
    def idx_bytes(self) -> int:
        return len(index_header(self.dtype, 0, 0)) + 12 * self.sequences + 8 * (self.documents + 1)


def _foresee(prefixes: Sequence[Path]) -> Merged:
    kinds: list[np.dtype] = []
    sequences = documents = tokens = 0
    for prefix in prefixes:
        file = IndexedFile(prefix)
        file.check_structure()
        kinds.append(file.dtype)
        sequences += file.num_sequences
        documents += file.num_documents
        tokens += file.num_tokens
    widest = max(kinds, key=lambda kind: kind.itemsize)
    return Merged(widest, sequences, documents, tokens, sum(kind != widest for kind in kinds))


def merge(
    prefixes: Sequence[Path],
    output: Path,
    *,
    files: Files | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Merged:
    """Write the documents of several pairs, in order, as one pair, which equals that of megatron-core's builder.

    Ids become int32 if one of the pairs holds int32. All arrays are streamed, so memory does not grow.

    Args:
        output: path of the new pair without extension; neither of its files may exist.
        progress: told now and then how many tokens are copied, and of how many.

    Raises:
        DataError: a pair is damaged, the output exists, or the disk is too small. Nothing is left then.
    """
    files = files or Files()
    merged = _foresee(prefixes)
    # The .idx before the .bin here, so that it appears after it: a reader needs both.
    with (
        _place(output, merged.bin_bytes + merged.idx_bytes),
        atomic_file(idx_path(output), files) as index,
        atomic_file(bin_path(output), files) as data,
    ):
        for block in _index(prefixes, merged):
            files.write(index, block)
        copied = 0
        for ids in _ids(prefixes):
            files.write(data, ids.astype(merged.dtype).tobytes())
            copied += len(ids)
            if progress:
                progress(copied, merged.tokens)
        _check_size(data, merged.bin_bytes)
        _check_size(index, merged.idx_bytes)
    return merged


def _index(prefixes: Sequence[Path], merged: Merged) -> Iterator[bytes]:
    yield index_header(merged.dtype, merged.sequences, merged.documents)
    for prefix in prefixes:
        for lengths in IndexedFile(prefix).lengths():
            yield lengths.tobytes()
    offset = 0  # a Python integer: sums of NumPy's int32 are where Megatron's merge overflowed
    for prefix in prefixes:
        for lengths in IndexedFile(prefix).lengths():
            ends = offset + np.cumsum(lengths, dtype=np.int64) * merged.dtype.itemsize
            yield np.concatenate(([offset], ends[:-1])).astype("<i8").tobytes()
            offset = int(ends[-1])
    before = 0
    yield np.zeros(1, "<i8").tobytes()
    for prefix in prefixes:
        file = IndexedFile(prefix)
        for documents in file.documents():
            yield (documents + before).astype("<i8").tobytes()
        before += file.num_sequences


def _ids(prefixes: Sequence[Path]) -> Iterator[np.ndarray]:
    for prefix in prefixes:
        file = IndexedFile(prefix)
        for start in range(0, file.num_tokens, _BLOCK_TOKENS):
            yield file.tokens(start, min(start + _BLOCK_TOKENS, file.num_tokens))


def _check_size(stream: BinaryIO, expected: int) -> None:
    stream.flush()
    if (size := os.fstat(stream.fileno()).st_size) != expected:
        raise DataError(f"{stream.name}: {size} bytes were written, not {expected}; did a pair change meanwhile?")


@contextmanager
def _place(output: Path, size: int) -> Iterator[None]:
    """A place to write a pair to: nothing is overwritten, it has room, and it is empty again after a failure."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(output.with_name(f".{output.name}{LOCK_SUFFIX}")):
            if temporary_name(idx_path(output)).exists():  # of a merge that was killed, perhaps after its .bin
                bin_path(output).unlink(missing_ok=True)
            for path in (bin_path(output), idx_path(output)):
                if path.exists():
                    raise DataError(f"--output: '{path}' exists; remove it or give another prefix")
            if (free := shutil.disk_usage(output.parent).free) < size:
                raise DataError(
                    f"--output: {size_text(size)} are needed, {size_text(free)} are free in '{output.parent}'; "
                    "make room or choose another disk"
                )
            try:
                yield
            except BaseException:
                if not idx_path(output).exists():
                    bin_path(output).unlink(missing_ok=True)
                raise
    except BlockingIOError as error:
        raise DataError(f"--output: another process is writing '{output}'; wait for it") from error
    except OSError as error:
        what = "the disk is full, nothing is left there" if error.errno == errno.ENOSPC else error.strerror
        raise DataError(f"--output: '{output}' cannot be written: {what}") from error


class _Progress:
    """A line now and then on stderr: share, speed, time left."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < _LINE_SECONDS:
            return
        self._last = now
        rate = done / (now - self._start)
        left = (total - done) / rate
        print(f"merging {done / total:.0%}  {rate / 1e6:.1f}M tok/s  eta {left:.0f} s", file=sys.stderr)


def _run(args: argparse.Namespace) -> None:
    if (args.directory is None) == (args.prefix is None):
        raise ConfigError("give either a data directory, or --prefix and existing pairs")
    if args.output.name in ("", "..") or args.output.suffix in (".bin", ".idx"):
        raise ConfigError(f"--output: '{args.output}' must name a file, without the extensions .bin and .idx")
    prefixes, origin = _prefixes(args)
    merged = merge(prefixes, args.output, progress=_Progress())
    print(
        f"{args.output}: {merged.documents:,} documents, {merged.tokens:,} tokens ({merged.dtype.name}), "
        f"{(merged.bin_bytes + merged.idx_bytes) / 1e6:,.1f} MB of {origin}"
    )
    if merged.converted:
        print(f"the uint16 ids of {merged.converted} of the pairs were made int32, as the others are")


def _prefixes(args: argparse.Namespace) -> tuple[list[Path], str]:
    if args.prefix is not None:
        try:
            found = expand(args.prefix)
        except DataError as error:
            raise DataError(f"--prefix: {error}") from error
        return found, count_text(len(found), "pair")
    shards = ShardSet(args.directory, args.split)
    found = [shards.prefix(shard) for shard in range(len(shards.shard_tokens) - 1)]
    if not found:
        raise DataError(f"{args.directory}: no {args.split} documents to merge; name another --split")
    return found, f"{count_text(len(found), 'shard')}, tokenizer {shards.manifest['tokenizer']['hash'][:12]}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data_tools.merge", description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", type=Path, help="written by data_tools.preprocess")
    parser.add_argument("--split", choices=SPLITS, default="train", help="of the directory; default: %(default)s")
    parser.add_argument(
        "--prefix", nargs="+", metavar="PREFIX", help="instead: existing pairs without extension, or quoted patterns"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="PREFIX", help="the new pair, without extension")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(_parser(), _run, argv)


if __name__ == "__main__":
    sys.exit(main())

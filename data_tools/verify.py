"""Check a data directory: sizes, structure and counts; with --full also every hash and every id.

python -m data_tools.verify data/wiki --full
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_glm.command import run_command
from megatron_glm.errors import DataError, TokenizerError

if TYPE_CHECKING:
    from megatron_glm.data.manifest import Manifest, Shard

_COPY_BYTES = 1 << 20  # a multiple of the size of a place


def problems(directory: Path, *, full: bool) -> Iterator[str]:
    """One line for each shard that is damaged, and for the quarantine.

    Raises:
        DataError: there is no valid manifest, so nothing can be compared.
    """
    from megatron_glm.data.manifest import QUARANTINE, SPLITS, read_manifest

    manifest = read_manifest(directory)
    for split in SPLITS:
        for shard in manifest.split(split).shards:
            try:
                _check_shard(directory / split / shard.name, shard, manifest, full=full)
            except DataError as error:
                yield str(error)
    if manifest.quarantine:
        try:
            _check_file(directory / QUARANTINE, manifest.quarantine.bytes, manifest.quarantine.sha256, full=full)
        except DataError as error:
            yield str(error)


def check_tokenizer(manifest: Manifest, directory: str) -> None:
    """Compare a tokenizer with the one that wrote the data, by its hash and by the ids of the probes.

    The hash covers the tokenizer's files, the probes also the library that reads them.

    Raises:
        TokenizerError: it is another, or cannot be loaded.
    """
    from megatron_glm.tokenizer.loading import load_tokenizer

    tokenizer, record = load_tokenizer(directory), manifest.tokenizer
    if tokenizer.content_hash != record.hash:
        raise TokenizerError(
            f"--tokenizer: '{directory}' has the hash {tokenizer.content_hash}, the data were written with "
            f"{record.hash}; use the tokenizer of the data or preprocess again"
        )
    for probe in record.probes:
        if (found := tokenizer.encode(probe.text).tolist()) != list(probe.ids):
            versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
            raise TokenizerError(
                f"--tokenizer: '{directory}' gives {found} for {probe.text!r}, the data have {list(probe.ids)}; "
                f"install the libraries that wrote them ({versions})"
            )


def _check_shard(prefix: Path, shard: Shard, manifest: Manifest, *, full: bool) -> None:
    from megatron_glm.data.indexed import IndexedFile
    from megatron_glm.data.pair_format import bin_path, idx_path
    from megatron_glm.data.provenance import ORIGIN_BYTES, origins_path

    for path, size in (
        (bin_path(prefix), shard.bin_bytes),
        (idx_path(prefix), shard.idx_bytes),
        (origins_path(prefix), shard.origins_bytes),
        (origins_path(prefix), shard.documents * ORIGIN_BYTES),
    ):
        _expect(path, "bytes", _size(path), size)
    file = IndexedFile(prefix)
    _expect(prefix, "documents", file.num_documents, shard.documents)
    _expect(prefix, "tokens", file.num_tokens, shard.tokens)
    _expect(prefix, "token type", file.dtype.name, manifest.dtype)
    if not full:
        return
    eos = manifest.tokenizer.special.get("eos") if manifest.append_eos else None
    if manifest.append_eos and eos is None:
        raise DataError(f"{prefix}: its documents end with eos, and the manifest's tokenizer has none; write it again")
    file.check(manifest.tokenizer.vocab_size, eos)
    _check_hash(bin_path(prefix), shard.bin_sha256)
    _check_hash(idx_path(prefix), shard.idx_sha256)
    _check_hash(origins_path(prefix), shard.origins_sha256)
    _check_places(origins_path(prefix))


def _check_file(path: Path, size: int, sha256: str, *, full: bool) -> None:
    _expect(path, "bytes", _size(path), size)
    if full:
        _check_hash(path, sha256)


def _check_places(path: Path) -> None:
    """The places of a shard's documents follow each other in one input."""
    import numpy as np

    last = -1
    with open(path, "rb") as stream:
        while block := stream.read(_COPY_BYTES):
            places = np.frombuffer(block, "<i8")
            # Compared, not subtracted: a difference beyond 2**63 would count as a step forward.
            behind = places <= np.concatenate(([last], places[:-1]))
            if behind.any():
                place = places[behind.argmax()]
                raise DataError(f"{path}: place {place} does not come after the one before it; write the data again")
            last = int(places[-1])


def _check_hash(path: Path, expected: str) -> None:
    from megatron_glm.files import sha256_of

    if (found := sha256_of(path)) != expected:
        raise DataError(f"{path}: SHA-256 is {found}, the manifest says {expected}; copy the file again")


def _expect(path: Path, what: str, found: object, expected: object) -> None:
    if found != expected:
        raise DataError(f"{path}: {what}: {found}, the manifest says {expected}; copy the directory again")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}, the manifest lists it; copy the directory again") from error


def _run(args: argparse.Namespace) -> None:
    from megatron_glm.data.manifest import SPLITS, read_manifest

    manifest = read_manifest(args.directory)
    if args.tokenizer:
        check_tokenizer(manifest, args.tokenizer)
    found = list(problems(args.directory, full=args.full))
    for line in found:
        print(line)
    shards = sum(len(manifest.split(split).shards) for split in SPLITS)
    if found:
        raise DataError(f"{args.directory}: {len(found)} of its {shards} shards and other files are damaged")
    print(
        f"{args.directory}: {shards} shards, {manifest.splits.train.tokens:,} + {manifest.splits.held_out.tokens:,} "
        f"tokens: {'every hash and id' if args.full else 'sizes and structure'} as the manifest says"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data_tools.verify", description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="written by data_tools.preprocess")
    parser.add_argument("--tokenizer", metavar="DIR", help="also check that this tokenizer gives the data's ids")
    parser.add_argument("--full", action="store_true", help="read everything: hashes, offsets, ids, eos")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(_parser(), _run, argv)


if __name__ == "__main__":
    sys.exit(main())
